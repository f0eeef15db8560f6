"""Backends of kernel calls: run a kernel at once, or record it into a plan.

A backend creates result tensors and receives calls, so that the ops are written once for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from penstock import _native

Tensor = TypeVar("Tensor")
Array = npt.NDArray[np.generic]


class CallBackend(Protocol, Generic[Tensor]):
    """Creates tensors and receives kernel calls. `kernels` and `pool` are objects of the
    extension."""

    kernels: Any
    pool: Any

    def empty(self, like: Tensor, columns: int, dtype: str = "float32") -> Tensor:
        """Create a [rows of `like`, columns] tensor."""

    def between(self, starts: Tensor, columns: int) -> Tensor:
        """Create a float32 tensor with a row for each pair of neighbours in `starts`."""

    def scratch(self, extent: int, dtype: str = "float32") -> Tensor:
        """Create a vector whose extent is the same in every step."""

    def call(
        self,
        kernel: str,
        tensors: Sequence[Any],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        weight: Any = None,
    ) -> None:
        """Run or record a kernel."""


LINE_BYTES = 64


def aligned_empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an undefined array that starts on a cache line, as kernels need for quantized rows."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


class EagerBackend:
    """Runs each call at once, over numpy arrays."""

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
    ) -> None:
        self.kernels.call(self.pool, kernel, tensors, list(integers), list(reals), weight)


class PlanRecorder:
    """Records each call. Constants and caches are numpy arrays, everything else is a PlanTensor."""

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
    ) -> None:
        self.recorder.call(kernel, tensors, list(integers), list(reals), weight)
