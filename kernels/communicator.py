"""Communication between the ranks of tensor parallelism: one process each, the same step in all.

Every rank computes the whole width of a token with its share of heads, of feed-forward columns and
of the vocabulary: an all-reduce follows attention and feed-forward network, an all-gather follows
the head. Imports no torch: see `kernels.torch_communicator`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

Tensor = TypeVar("Tensor")


class Communicator(Protocol[Tensor]):
    """Collective operations of this rank among `count`. All ranks call the same methods in the same
    order, with tensors of the same sizes; a call returns when every rank has made it."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. count - 1."""

    @property
    def count(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the elementwise sum over all ranks: [T, W] -> [T, W], the same bits on every rank.
        The result may share the memory of `x`."""

    def all_gather(self, y: Tensor, columns: int) -> Tensor:
        """Return the tensors of all ranks side by side in rank order, cut to `columns`: [S, N] ->
        [S, columns], columns <= count * N."""


class _SingleRank:
    """The only rank: each operation returns its argument."""

    rank: Final = 0
    count: Final = 1

    def all_reduce(self, x: Any) -> Any:
        return x

    def all_gather(self, y: Any, columns: int) -> Any:
        return y


SINGLE_RANK: Final = _SingleRank()
"""`Communicator` of a model that is not divided, over tensors of any kind."""
