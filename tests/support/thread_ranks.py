"""Ranks as threads of this process, which exchange tensors at a barrier."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class Meeting:
    """A point where each of `count` threads gives a tensor and gets those of all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._given: list[torch.Tensor] = [torch.empty(0)] * count
        self._barrier = threading.Barrier(count, timeout=60)

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._given[rank] = x
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        return given

    def leave(self) -> None:
        self._barrier.abort()


class ThreadRanks:
    """The `Communicator[torch.Tensor]` of one thread."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.count = meeting.count
        self._meeting = meeting

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return functools.reduce(operator.add, self._meeting.exchange(self.rank, x))

    def all_gather(self, y: torch.Tensor, columns: int) -> torch.Tensor:
        return torch.cat(self._meeting.exchange(self.rank, y), dim=1)[:, :columns]

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(self._meeting.exchange(self.rank, x.clone())[0])

    def close(self) -> None:
        """Release nothing: the ranks end with their threads."""


def on_ranks(count: int, work: Callable[[ThreadRanks], T]) -> list[T]:
    """Run `work` on each of `count` ranks and return the results. The first error ends all."""
    meeting = Meeting(count)

    def one(rank: int) -> T:
        try:
            return work(ThreadRanks(rank, meeting))
        except Exception:
            meeting.leave()
            raise

    with ThreadPoolExecutor(count) as threads:
        futures = [threads.submit(one, rank) for rank in range(count)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    told = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (told or errors)[0]
    return [future.result() for future in futures]
