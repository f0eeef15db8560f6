"""Graphs of the decode step: which size serves, when it is captured, and how.

A size is captured when it is first wanted, or before, while there is nothing else to do.

A step of R rows is replayed at the least captured size that holds it; chunks of nobody fill it up.
Graphs share one pool of memory: the largest is captured first, so that the smaller ones fit into
what it left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

T = TypeVar("T")

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
BEYOND = 128
"""Between two sizes over the largest of `SIZES`."""


def sizes_up_to(max_rows: int) -> tuple[int, ...]:
    """The sizes of steps of up to `max_rows` rows."""
    sizes = list(SIZES)
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] + BEYOND)
    return tuple(
        size for size, before in zip(sizes, [0, *sizes], strict=False) if before < max_rows
    )


@dataclass(frozen=True, slots=True)
class StepForm:
    """What a step of decodes does beside its forward pass: `samples`, or leaves that to the host;
    `adapted`: rows may have adapters. One that is not has no trace of them."""

    samples: bool
    adapted: bool = False


class Capturer(Protocol):
    """Turns a computation over fixed memory into one that is replayed."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        """`compute` may be called meanwhile, and what it does must not matter then. The result
        does what it does, into the memory of the same results."""


class EagerCapturer:
    """No graphs: a step is computed anew. For a CPU, and for telling what a graph does wrong."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        return compute


class CudaCapturer:
    """CUDA graphs in one pool, captured and replayed on `stream`."""

    WARM_UPS = 2
    """Kernels are compiled and libraries set up before anything is captured."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        for _ in range(self.WARM_UPS):
            compute()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            self._stream.synchronize()
            # Not torch.cuda.graph, which empties the allocator's cache: what is kept there for the
            # next prompt and for adapters would be asked of the driver again, among steps. Other
            # threads may allocate meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = compute()
            except BaseException:
                # The stream must leave its capture; why that fails too is no news.
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> T:
            graph.replay()
            return results

        return replay


class DecodeGraphs(Generic[T]):
    """The graphs of steps of up to `max_rows` rows, each captured when it is first wanted.

    `compute(size, form)`: the step of that size and form. `clear(size, form)`: make its inputs
    those of nobody, for the calls that a capture makes.
    """

    def __init__(
        self,
        capturer: Capturer,
        max_rows: int,
        compute: Callable[[int, StepForm], T],
        clear: Callable[[int, StepForm], None],
    ) -> None:
        self.sizes = sizes_up_to(max_rows)
        self._capturer = capturer
        self._compute = compute
        self._clear = clear
        self._graphs: dict[tuple[int, StepForm], Callable[[], T]] = {}

    @property
    def captured(self) -> list[tuple[int, StepForm]]:
        """Sizes and forms, in the order in which they were captured."""
        return list(self._graphs)

    def size_for(self, rows: int) -> int:
        """The least size that holds `rows` rows."""
        return next(size for size in self.sizes if size >= rows)

    def make(self, size: int, form: StepForm) -> None:
        """Capture what a replay will need. The inputs are those of nobody afterwards."""
        for wanted in (self.sizes[-1], size):
            if (wanted, form) not in self._graphs:
                self._clear(wanted, form)
                self._graphs[wanted, form] = self._capturer.capture(
                    lambda wanted=wanted: self._compute(wanted, form)  # type: ignore[misc]
                )

    def missing(self) -> tuple[int, StepForm] | None:
        """The largest size that was not captured yet of a form that was wanted before."""
        forms = dict.fromkeys(form for _, form in self._graphs)
        wanted = ((size, form) for form in forms for size in reversed(self.sizes))
        return next((one for one in wanted if one not in self._graphs), None)

    def replay(self, size: int, form: StepForm) -> T:
        """The results of a step, in memory that the next step of this size and form writes to."""
        return self._graphs[size, form]()
