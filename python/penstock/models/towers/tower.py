"""The interfaces of towers, which encode prepared media into embeddings of the language model."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.media.processor import MediaProcessor
from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class EncodedMedia(Generic[Tensor]):
    """The embeddings of one item.

    - `rows`: [N, W], in the order of `Expansion.runs`.
    - `deep`: DeepStack: further rows [N, W] that are added to the hidden states after the first
      layers, one tensor per layer.
    """

    rows: Tensor
    deep: tuple[Tensor, ...] = ()


class Tower(Protocol[Tensor]):
    """A tower whose weights are packed for one kernel backend."""

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        """Encode one item in pieces, with a `yield` after each, so that the engine can compute
        steps of other requests in between. Each piece has the size that `budget` has before it. The
        result depends neither on the sizes of the pieces nor on other items."""


class LoadedTower(Protocol):
    """A tower whose tensors have been found and checked. Its weights are read when it is built.

    - `weight_bytes`: bytes of its tensors in memory.
    """

    @property
    def weight_bytes(self) -> int: ...

    def build(self, ops: Ops[Any]) -> Tower[Any]:
        """Pack the weights for a backend."""


class TowerSpec(Protocol):
    """The configuration of a tower."""

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """The kinds of media that the tower encodes."""

    def scratch_bytes(self) -> int:
        """Return an upper bound of the bytes of activations while the largest item is encoded."""

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedTower:
        """Find and check the tensors. Raises ModelError naming a tensor that is missing or has a
        wrong shape."""


@dataclass(frozen=True, slots=True)
class MediaMode:
    """The changes to a request with media of `kind`.

    - `adapter`: the folder of the adapter that the language model then uses; None: no adapter.
    - `layouts`: (kind, number): the number is appended to the `layout` of the request's media of
      another kind, which their tower encodes in another way.
    """

    kind: MediaKind
    adapter: Path | None = None
    layouts: tuple[tuple[MediaKind, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MediaSpec:
    """The media side of a model: the processor and the towers, as read from the model's files.
    `modes`: the first one whose kind a request has applies to the request."""

    processor: MediaProcessor
    towers: tuple[TowerSpec, ...]
    modes: tuple[MediaMode, ...] = ()
