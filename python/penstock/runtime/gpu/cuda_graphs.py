"""CUDA graphs of decode steps: the captured sizes, and when and how they are captured.

A size is captured when it is first needed, or earlier, while the engine is idle. A step of R rows
is replayed at the smallest size that holds it, filled with padding chunks. Graphs share one memory
pool: the largest is captured first, so that the smaller ones fit into its memory.
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
"""Distance between sizes beyond the largest of `SIZES`."""


def sizes_up_to(max_rows: int) -> tuple[int, ...]:
    """Return the graph sizes for steps of up to `max_rows` rows."""
    sizes = list(SIZES)
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] + BEYOND)
    return tuple(
        size for size, before in zip(sizes, [0, *sizes], strict=False) if before < max_rows
    )


@dataclass(frozen=True, slots=True)
class StepForm:
    """The form of a decode step besides its forward pass: the device `samples` or leaves that to
    the CPU; rows may have adapters (`adapted`) or the step contains no adapter kernels."""

    samples: bool
    adapted: bool = False


class Capturer(Protocol):
    """Turns a computation over fixed memory into one that can be replayed."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        """Return a replay of `compute`, which writes its results to the same memory every time.

        `compute` may be called during the capture; its side effects must be harmless then.
        """


class EagerCapturer:
    """Captures no graph: each step runs kernel by kernel. For a CPU, and to debug a graph."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        return compute


class CudaCapturer:
    """Captures CUDA graphs in one memory pool and replays them on `stream`."""

    WARM_UPS = 2
    """Runs before a capture, in which kernels are compiled and libraries set up."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        for _ in range(self.WARM_UPS):
            compute()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            self._stream.synchronize()
            # Not torch.cuda.graph, which empties the allocator's cache: the memory that it keeps
            # for the next prefill and for adapters would have to be allocated by the driver again,
            # between steps. Other threads may allocate meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = compute()
            except BaseException:
                # The stream must leave its capture; the error of that adds no information.
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> T:
            graph.replay()
            return results

        return replay


class DecodeGraphs(Generic[T]):
    """The graphs of decode steps of up to `max_rows` rows, each captured when first needed.

    `compute(size, form)` computes a step. `clear(size, form)` fills its inputs with padding, for
    the runs that a capture makes.
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
        """Sizes and forms in the order in which they were captured."""
        return list(self._graphs)

    def size_for(self, rows: int) -> int:
        """Return the smallest size that holds `rows` rows."""
        return next(size for size in self.sizes if size >= rows)

    def make(self, size: int, form: StepForm) -> None:
        """Capture the graph of this size and form, and the largest one first. Afterwards the
        inputs are padding."""
        for wanted in (self.sizes[-1], size):
            if (wanted, form) not in self._graphs:
                self._clear(wanted, form)
                self._graphs[wanted, form] = self._capturer.capture(
                    lambda wanted=wanted: self._compute(wanted, form)  # type: ignore[misc]
                )

    def missing(self) -> tuple[int, StepForm] | None:
        """Return the largest size not captured yet of a form that has been used, or None."""
        forms = dict.fromkeys(form for _, form in self._graphs)
        wanted = ((size, form) for form in forms for size in reversed(self.sizes))
        return next((one for one in wanted if one not in self._graphs), None)

    def replay(self, size: int, form: StepForm) -> T:
        """Run a step. Return its results, in memory that the next step of this size and form
        overwrites."""
        return self._graphs[size, form]()
