"""CUDA graphs of decode steps: which sizes are captured, when and how.

A size is captured when it is first needed, or earlier while the engine is idle. A step of R rows
replays the graph of the smallest size that holds it, filled up with padding chunks. All graphs
share one memory pool. The largest graph is captured first, so that smaller ones fit into its
memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

Form = TypeVar("Form", bound=Hashable)
T = TypeVar("T")

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
BEYOND = 128
"""Distance between the sizes beyond the largest of `SIZES`."""


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
    """The variant of a decode step. Each variant has its own graphs.

    `samples`: the device samples; if False, the CPU does.
    `adapted`: the step contains adapter kernels, so that rows may have adapters.
    """

    samples: bool
    adapted: bool = False


class Capturer(Protocol):
    """Turns a computation on fixed memory into one that can be replayed."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        """Return a function that replays `compute`, writing the results to the same memory every
        time.

        `compute` may be called during the capture, so its side effects must be harmless then.
        """


class EagerCapturer:
    """Replays a step kernel by kernel instead of capturing a graph. For a CPU, and to debug a
    graph."""

    def capture(self, compute: Callable[[], T]) -> Callable[[], T]:
        return compute


class CudaCapturer:
    """Captures CUDA graphs in one memory pool and replays them on `stream`."""

    WARM_UPS = 2
    """Runs before a capture, during which kernels are compiled and libraries set up."""

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
                # The stream must end its capture; a second error adds no information.
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> T:
            graph.replay()
            return results

        return replay


def capturer_of(stream: Any, *, graphs: bool) -> Capturer:
    """Return the capturer for steps on `stream`, which is None on a CPU. `graphs`: False launches
    steps kernel by kernel."""
    return CudaCapturer(stream) if graphs and stream is not None else EagerCapturer()


class DecodeGraphs(Generic[Form, T]):
    """The graphs of decode steps of up to `max_rows` rows, each captured when it is first needed.
    Each form of a step has its own graphs, for example a `StepForm`.

    `compute(size, form)`: computes a step.
    `clear(size, form)`: fills the inputs of a step with padding, before a capture runs the step.
    """

    def __init__(
        self,
        capturer: Capturer,
        max_rows: int,
        compute: Callable[[int, Form], T],
        clear: Callable[[int, Form], None],
    ) -> None:
        self.sizes = sizes_up_to(max_rows)
        self._capturer = capturer
        self._compute = compute
        self._clear = clear
        self._graphs: dict[tuple[int, Form], Callable[[], T]] = {}

    @property
    def captured(self) -> list[tuple[int, Form]]:
        """Size and form of each captured graph, in the order of the captures."""
        return list(self._graphs)

    def size_for(self, rows: int) -> int:
        """Return the smallest size that holds `rows` rows."""
        return next(size for size in self.sizes if size >= rows)

    def make(self, size: int, form: Form) -> None:
        """Capture the graph of this size and form unless it exists, after the largest graph of this
        form. If a graph is captured, the inputs of the step are padding afterwards."""
        for wanted in (self.sizes[-1], size):
            if (wanted, form) not in self._graphs:
                self._clear(wanted, form)
                self._graphs[wanted, form] = self._capturer.capture(
                    lambda wanted=wanted: self._compute(wanted, form)  # type: ignore[misc]
                )

    def missing(self) -> tuple[int, Form] | None:
        """Return the size and form of the largest graph that is not captured yet, among the forms
        that have been used. Return None if there is none."""
        forms = dict.fromkeys(form for _, form in self._graphs)
        wanted = ((size, form) for form in forms for size in reversed(self.sizes))
        return next((one for one in wanted if one not in self._graphs), None)

    def replay(self, size: int, form: Form) -> T:
        """Run a step. Return its results, in memory that the next step of this size and form
        overwrites."""
        return self._graphs[size, form]()
