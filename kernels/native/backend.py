"""Backends of kernel calls: `EagerBackend` runs a kernel at once, `PlanRecorder` records the call
into a plan.

A backend creates result tensors and receives kernel calls, so that each op is written once for both
backends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from penstock import _native

Tensor = TypeVar("Tensor")
Array = npt.NDArray[np.generic]


Flagged = tuple[Any, int]
"""A tensor [rows] int32 of zeros and ones, and the flag of the rows that are meant."""


class CallBackend(Protocol, Generic[Tensor]):
    """Creates tensors and receives kernel calls.

    `kernels`: the kernels, a `KernelSet` of the extension module.
    `pool`: a `ThreadPool` of the extension module.
    """

    kernels: Any
    pool: Any

    def empty(self, like: Tensor, columns: int, dtype: str = "float32") -> Tensor:
        """Create a tensor [rows, columns] with as many rows as `like`."""

    def between(self, starts: Tensor, columns: int) -> Tensor:
        """Create a float32 tensor [R, columns] for `starts: [R + 1]`."""

    def scratch(self, extent: int, dtype: str = "float32") -> Tensor:
        """Create a vector of `extent` elements, the same number in every step."""

    def call(
        self,
        kernel: str,
        tensors: Sequence[Any],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        weight: Any = None,
        only: Flagged | None = None,
    ) -> None:
        """Run or record a call of the kernel named `kernel`. `only`: the rows that the call
        computes, for a row-wise kernel whose tensors all have these rows; None: all rows."""


LINE_BYTES = 64


def aligned_empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an uninitialized array that starts on a cache line, as kernels require for quantized
    rows."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


class EagerBackend:
    """Runs each kernel call at once, over numpy arrays."""

    def __init__(self, kernels: Any, pool: Any) -> None:
        self.kernels = kernels
        self.pool = pool

    def empty(self, like: Array, columns: int, dtype: str = "float32") -> Array:
        return aligned_empty((like.shape[0], columns), dtype)

    def between(self, starts: Array, columns: int) -> Array:
        return aligned_empty((starts.shape[0] - 1, columns), "float32")

    def scratch(self, extent: int, dtype: str = "float32") -> Array:
        return np.empty(extent, dtype=dtype)

    def call(
        self,
        kernel: str,
        tensors: Sequence[Any],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        weight: Any = None,
        only: Flagged | None = None,
    ) -> None:
        numbers = list(integers), list(reals)
        if only is None:
            self.kernels.call(self.pool, kernel, tensors, *numbers, weight)
            return
        for first, last in _runs(*only):
            rows = [tensor[first:last] for tensor in tensors]
            self.kernels.call(self.pool, kernel, rows, *numbers, weight)


def _runs(flags: npt.NDArray[np.int32], value: int) -> Iterator[tuple[int, int]]:
    """Yield the runs [first, last) of rows whose flag is `value`."""
    meant = np.concatenate(([False], flags == value, [False]))
    edges: list[int] = np.flatnonzero(meant[1:] != meant[:-1]).tolist()
    yield from zip(edges[::2], edges[1::2], strict=True)


class PlanRecorder:
    """Records each kernel call. Constants and caches are numpy arrays; all other tensors are
    `PlanTensor`s."""

    def __init__(
        self, kernels: Any, pool: Any, max_tokens: int, max_rows: int, max_samples: int
    ) -> None:
        self.kernels = kernels
        self.pool = pool
        self.recorder = _native.Recorder(kernels, max_tokens, max_rows, max_samples)

    def empty(self, like: Any, columns: int, dtype: str = "float32") -> Any:
        return self.recorder.empty(like, columns, dtype)

    def between(self, starts: Any, columns: int) -> Any:
        return self.recorder.between(starts, columns)

    def scratch(self, extent: int, dtype: str = "float32") -> Any:
        return self.recorder.scratch(extent, dtype)

    def call(
        self,
        kernel: str,
        tensors: Sequence[Any],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        weight: Any = None,
        only: Flagged | None = None,
    ) -> None:
        flags, value = (None, 0) if only is None else only
        self.recorder.call(
            kernel, tensors, list(integers), list(reals), weight, flags=flags, value=value
        )
