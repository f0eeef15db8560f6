"""Communication between the ranks of tensor parallelism. Each rank is one process, and all ranks
compute the same steps.

Every rank holds the full-width activations of each token and computes its share of the attention
heads, of the feed-forward columns and of the vocabulary. An all-reduce follows attention and the
feed-forward network; an all-gather follows the output head. This module imports no torch: see
`kernels.torch_communicator`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

Tensor = TypeVar("Tensor")


class Communicator(Protocol[Tensor]):
    """Collective operations between all `count` ranks. All ranks call the same methods in the same
    order, with tensors of the same sizes. A call completes when every rank has made the same
    call."""

    @property
    def rank(self) -> int:
        """The number of this rank, 0 .. count - 1."""

    @property
    def count(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the elementwise sum of `x: [T, W]` over all ranks: [T, W], with the same bits on
        every rank. The result may share the memory of `x`."""

    def all_gather(self, y: Tensor, columns: int) -> Tensor:
        """Concatenate the columns of `y: [S, N]` of all ranks in rank order, and return the first
        `columns` of them: [S, columns], with columns <= count * N."""


class _SingleRank:
    """A `Communicator` with a single rank: each operation returns its argument."""

    rank: Final = 0
    count: Final = 1

    def all_reduce(self, x: Any) -> Any:
        return x

    def all_gather(self, y: Any, columns: int) -> Any:
        return y


SINGLE_RANK: Final = _SingleRank()
"""The `Communicator` of a model that is not divided among GPUs, for tensors of any type."""
