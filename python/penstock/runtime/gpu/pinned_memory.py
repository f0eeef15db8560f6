"""Pins host memory of exactly the requested size. torch's allocator (`CachingHostAllocator`) rounds
sizes up to a power of two."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from penstock.base.errors import ModelError

PINNED_FOR_THE_DEVICE = 0  # cudaHostRegisterDefault


class PinnedMemory:
    """Uninitialized host memory, pinned for the current device. `data`: a tensor of `shape` and
    `dtype` in this memory.

    The memory stays pinned until this object is closed or garbage-collected; no copy may be running
    then. If `device` is a CPU (tests), the memory is not pinned. Raises ModelError if the driver
    cannot pin this much memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.empty(shape, dtype=dtype)
        self._unpin: Any = None
        if device.type == "cuda":
            _pin(self.data)
            self._unpin = weakref.finalize(self, _unpin, self.data)
            self._unpin.atexit = False  # at exit the driver may be gone; the memory is freed anyway

    def close(self) -> None:
        """Unpin the memory. May be called again."""
        if self._unpin is not None:
            self._unpin()


def _pin(memory: torch.Tensor) -> None:
    driver: Any = torch.cuda.cudart()
    status = driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, PINNED_FOR_THE_DEVICE)
    if int(status):
        raise ModelError(
            f"{memory.nbytes >> 20} MiB of host memory cannot be pinned: "
            f"{driver.cudaGetErrorString(status)}; a smaller cpu_kv_cache_memory_mb needs less"
        )


def _unpin(memory: torch.Tensor) -> None:
    driver: Any = torch.cuda.cudart()
    status = driver.cudaHostUnregister(memory.data_ptr())
    assert not int(status), driver.cudaGetErrorString(status)
