"""Whisper's encoder as a tower."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors
from penstock.models.towers.whisper_encoder import WhisperEncoder
from penstock.models.whisper.spec import WhisperSpec
from penstock.models.whisper.weights import ENCODER, WhisperWeights
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")


class WhisperTower(Generic[Tensor]):
    """Encodes a window to one row, [1, positions * W]: it takes the place of one token."""

    def __init__(self, spec: WhisperSpec, tensors: TowerTensors, ops: Ops[Tensor]) -> None:
        self._encoder = WhisperEncoder(spec.encoder, tensors, ops, ENCODER)

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        states, _ = yield from self._encoder.encode(ops, media.array(), budget)
        flat: Any = states
        return EncodedMedia(flat.reshape(1, -1))


@dataclass(frozen=True, slots=True)
class LoadedWhisperTower:
    """The tensors of the encoder."""

    spec: WhisperSpec
    weights: WhisperWeights

    @property
    def weight_bytes(self) -> int:
        return self.weights.encoder_bytes

    def build(self, ops: Ops[Any]) -> WhisperTower[Any]:
        return WhisperTower(self.spec, self.weights.tensors, ops)


@dataclass(frozen=True, slots=True)
class WhisperTowerSpec:
    """The `TowerSpec` of Whisper."""

    spec: WhisperSpec

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"audio"})

    def scratch_bytes(self) -> int:
        return self.spec.encoder.scratch_bytes()

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedWhisperTower:
        return LoadedWhisperTower(self.spec, WhisperWeights(checkpoint, self.spec, dtype))
