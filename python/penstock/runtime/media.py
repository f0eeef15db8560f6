"""The towers of a loaded model, and the items that they have encoded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.models.loader.model_loader import LoadedEmbedder, LoadedModel
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import EncodedMedia, MediaMode, Tower

Tensor = TypeVar("Tensor")
Floats = npt.NDArray[np.float32]
Encoding = Generator[None, None, EncodedMedia[Any]]

NOT_FINITE: Final = "the model gave no finite numbers for this {kind}"


class EncodeError(Exception):
    """The rows of an encoded item cannot be used. The message is for the client."""


class RuntimeMedia(Protocol):
    """The towers of a runtime, and the encoded items that its rows may use. All methods are called
    between steps.

    `kinds`: the kinds of media that the towers encode.
    `modes`: see MediaSpec.
    `row_bytes`: bytes of one row of an encoded item, without DeepStack rows.
    """

    @property
    def kinds(self) -> frozenset[MediaKind]: ...
    @property
    def modes(self) -> tuple[MediaMode, ...]: ...
    @property
    def row_bytes(self) -> int: ...

    def encode(self, media: PreparedMedia, budget: PieceBudget) -> Encoding:
        """Encode an item in pieces, with a `yield` after each; see `Tower.encode`. Raises
        EncodeError if the rows are not finite or not as wide as the model's embeddings, and any
        error of the tower."""

    def keep(self, digest: bytes, encoded: EncodedMedia[Any]) -> None:
        """Make an encoded item available to the rows of later steps."""

    def drop(self, digest: bytes) -> None:
        """Forget an encoded item. Rows that were admitted before go on with it."""


def _is_finite(rows: Floats) -> bool:
    return bool(np.isfinite(rows).all())


class TowerMedia(Generic[Tensor]):
    """`RuntimeMedia` over the ops of a kernel backend.

    `width`: W, numbers per embedding.
    `as_rows`: converts a tensor to rows [N, W] that stay valid.
    `piece`: a context in which each piece is computed.
    `is_finite`: returns whether all numbers of such rows are finite.
    """

    def __init__(
        self,
        towers: Iterable[tuple[frozenset[MediaKind], Tower[Tensor]]],
        ops: Ops[Tensor],
        width: int,
        as_rows: Callable[[Tensor], Any],
        piece: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_finite: Callable[[Any], bool] = _is_finite,
        modes: tuple[MediaMode, ...] = (),
    ) -> None:
        self.modes = modes
        self._towers = {kind: tower for kinds, tower in towers for kind in kinds}
        self._ops = ops
        self._width = width
        self._as_rows = as_rows
        self._piece = piece
        self._is_finite = is_finite
        self.kinds = frozenset(self._towers)
        self.row_bytes = 4 * width
        self.encoded: dict[bytes, EncodedMedia[Floats]] = {}

    def encode(self, media: PreparedMedia, budget: PieceBudget) -> Encoding:
        """Encode an item in pieces; see `RuntimeMedia.encode`."""
        steps = self._towers[media.kind].encode(self._ops, media, budget)
        while True:
            try:
                with self._piece():
                    next(steps)
            except StopIteration as done:
                made: EncodedMedia[Tensor] = done.value
                break
            yield
        rows, *deep = (self._checked(media.kind, tensor) for tensor in (made.rows, *made.deep))
        return EncodedMedia(rows, tuple(deep))

    def keep(self, digest: bytes, encoded: EncodedMedia[Any]) -> None:
        self.encoded[digest] = encoded

    def drop(self, digest: bytes) -> None:
        del self.encoded[digest]

    def _checked(self, kind: MediaKind, tensor: Tensor) -> Floats:
        rows: Floats = self._as_rows(tensor)
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise EncodeError(f"the {kind} gave embeddings of shape {rows.shape}, not [N, W]")
        if not self._is_finite(rows):
            raise EncodeError(NOT_FINITE.format(kind=kind))
        return rows


def tower_media(
    model: LoadedModel | LoadedEmbedder,
    ops: Ops[Tensor],
    as_rows: Callable[[Tensor], Any],
    piece: Callable[[], AbstractContextManager[None]] = nullcontext,
    is_finite: Callable[[Any], bool] = _is_finite,
) -> TowerMedia[Tensor] | None:
    """Pack the towers of `model` for `ops`. Return None for a model without towers. The other
    arguments: see `TowerMedia`."""
    if not model.media or model.media_spec is None:
        return None
    pairs = zip(model.media_spec.towers, model.media, strict=True)
    towers = [(spec.kinds, loaded.build(ops)) for spec, loaded in pairs]
    width, modes = model.spec.hidden_size, model.media_spec.modes
    return TowerMedia(towers, ops, width, as_rows, piece, is_finite, modes)
