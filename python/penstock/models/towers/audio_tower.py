"""The towers of language models that hear with Whisper's encoder: its positions are joined and
projected to the width of the language model."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.audio_spec import WhisperEncoderSpec, norm_shapes, whisper_shapes
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.projector import Projector, ProjectorSpec, ProjectorWeights
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.models.towers.whisper_encoder import WhisperEncoder
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class AudioTowerSpec:
    """Whisper's encoder with a projector. Media are features [mels, windows * frames]; `layout` is
    (positions,) of a recording in one window that ends with padding, else ().

    - `roots`: the prefixes that may precede the names of the encoder's tensors.
    - `mean_pairs`: the mean of each two positions becomes one, before the last norm.
    - `last_norm`: the name of the norm after the last layer.
    - `stack`: adjacent positions that are joined to one row of the projector's inputs.
    """

    encoder: WhisperEncoderSpec
    roots: tuple[str, ...]
    projector: ProjectorSpec
    mean_pairs: bool = False
    last_norm: str = "layer_norm"
    stack: int = 1

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"audio"})

    def scratch_bytes(self) -> int:
        return self.encoder.scratch_bytes()

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> LoadedAudioTower:
        """Find and check the tensors; see TowerSpec."""
        width = self.encoder.body.width
        shapes = whisper_shapes(self.encoder, "") | norm_shapes(self.last_norm, width)
        root = find_root(self.roots, "conv1.weight", checkpoint)
        tensors = TowerTensors(checkpoint, root, shapes, dtype)
        return LoadedAudioTower(self, tensors, ProjectorWeights(checkpoint, self.projector, dtype))


@dataclass(frozen=True, slots=True)
class LoadedAudioTower:
    """The tensors of a tower."""

    spec: AudioTowerSpec
    tensors: TowerTensors
    projector: ProjectorWeights

    @property
    def weight_bytes(self) -> int:
        return self.tensors.size_bytes + self.projector.size_bytes

    def build(self, ops: Ops[Any]) -> AudioTower[Any]:
        return AudioTower(self, ops)


class AudioTower(Generic[Tensor]):
    """A tower whose weights are packed for one kernel backend."""

    def __init__(self, loaded: LoadedAudioTower, ops: Ops[Tensor]) -> None:
        self._spec = spec = loaded.spec
        self._encoder = WhisperEncoder(spec.encoder, loaded.tensors, ops, "", spec.last_norm)
        self._projector = Projector(spec.projector, loaded.projector, ops)

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        features, frames = media.array(), self._spec.encoder.frames
        positions = media.layout[0] if media.layout else None
        windows: list[Any] = []
        for begin in range(0, features.shape[1], frames):
            states, sums = yield from self._encoder.encode(
                ops, features[:, begin : begin + frames], budget, positions
            )
            yield
            rows = self._joined(ops, states, sums)
            projected = yield from self._projector.project(ops, rows, [(1, len(rows))], budget)
            windows.append(projected)
        return EncodedMedia(windows[0] if len(windows) == 1 else _stacked(ops, windows))

    def _joined(self, ops: Ops[Tensor], states: Tensor, sums: Tensor) -> Any:
        """Return the rows of the projector's inputs. `states`, `sums`: after the last norm, and
        before it."""
        x: Any = states
        if self._spec.mean_pairs:
            pairs: Any = sums
            starts = np.arange(len(pairs) // 2 + 1, dtype=np.int32) * 2
            x = ops.mean_rows(pairs[: starts[-1]], ops.constant(starts))
            norm = self._encoder.last_norm
            x = ops.layer_norm(x, norm.weight, norm.bias, self._spec.encoder.body.norm_eps)
        stack = self._spec.stack
        count = -(-len(x) // stack)
        if count * stack > len(x):  # the last row ends with zeros
            padded: Any = ops.constant(np.zeros((count * stack, x.shape[1]), np.float32))
            padded[: len(x)] = x
            x = padded
        return x.reshape(count, -1)


def _stacked(ops: Ops[Any], windows: list[Any]) -> Any:
    """Return the rows of all windows in one tensor."""
    rows: Any = ops.constant(np.empty((sum(map(len, windows)), windows[0].shape[1]), np.float32))
    first = 0
    for window in windows:
        rows[first : first + len(window)] = window
        first += len(window)
    return rows
