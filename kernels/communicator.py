"""The ranks of a model that is cut into shards: one process each, the same step in all of them.

Every rank computes the whole width of a token with its share of heads, of feed-forward columns and
of the vocabulary. What they must know of each other comes through here. Imports no torch: see
`kernels.torch_ranks`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

Tensor = TypeVar("Tensor")


class Communicator(Protocol[Tensor]):
    """This rank among `count`. All ranks call the same methods in the same order, with tensors of
    the same sizes; a call ends when every rank has made it."""

    @property
    def rank(self) -> int:
        """0 .. count - 1."""

    @property
    def count(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The elementwise sum of what all ranks give: [T, W] -> [T, W], the same bits on every
        rank. It may lie in the memory of `x`."""

    def all_gather(self, y: Tensor, columns: int) -> Tensor:
        """What all ranks give side by side in their order, of which the first `columns` are kept:
        [S, N] -> [S, columns], columns <= count * N."""


class _SingleRank:
    """One rank: what it gives is the result itself, and nothing is computed."""

    rank: Final = 0
    count: Final = 1

    def all_reduce(self, x: Any) -> Any:
        return x

    def all_gather(self, y: Any, columns: int) -> Any:
        return y


SINGLE_RANK: Final = _SingleRank()
"""`Communicator` of a model that is whole, over tensors of any kind."""
