"""Transfers between host memory and a device: packed words to the device, small results back.

On a CUDA device, the host buffers are pinned and copies are ordered by the current stream. A ring
of staging buffers lets the CPU write the next step while earlier ones are still being copied. On
the device "cpu" (tests), a copy is done at once, so the ring has only one buffer. This buffer is an
array and not a tensor, so that a test that counts tensors sees only the memory of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

RING = 4
"""Number of staging buffers: more than the steps in flight, so that the CPU never waits for a
buffer."""


class Fetched:
    """Results that are being copied to host memory."""

    def __init__(self, tensors: Sequence[torch.Tensor], arrived: Any) -> None:
        self._tensors = tensors
        self._arrived = arrived

    def wait(self) -> list[npt.NDArray[Any]]:
        """Wait for the copies. Return the results as arrays."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


def copy_to_device(array: npt.NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """Copy an array to a device, without waiting for the stream. Unsigned integers of 32 bits
    become signed integers with the same bits."""
    tensor = torch.from_numpy(array.view(np.int32) if array.dtype == np.uint32 else array)
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostTransfers:
    """Copies data to and from `device`. `num_words`: most words that one `send` copies."""

    def __init__(self, device: torch.device, num_words: int) -> None:
        self._cuda = device.type == "cuda"
        self.words = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._pinned: list[torch.Tensor] = []
        self._written: list[npt.NDArray[np.int32]] = [np.zeros(num_words, np.int32)] * RING
        if self._cuda:
            self._pinned = [
                torch.zeros(num_words, dtype=torch.int32, pin_memory=True) for _ in range(RING)
            ]
            self._written = [part.numpy() for part in self._pinned]
        self._copied: list[Any] = [None] * RING
        self._next = 0

    def staging(self) -> npt.NDArray[np.int32]:
        """Return the buffer for the next `send`. The buffer stays the same until `send`."""
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
            self._copied[self._next] = None
        return self._written[self._next]

    def send(self, num_words: int) -> None:
        """Copy the first `num_words` words of the staging buffer to `words` on the device, in the
        order of the stream."""
        staged = self._pinned[self._next] if self._cuda else torch.from_numpy(self.staging())
        self.words[:num_words].copy_(staged[:num_words], non_blocking=True)
        self._copied[self._next] = self._mark()
        self._next = (self._next + 1) % RING

    def to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Copy a short array to the device, without waiting for the stream."""
        return copy_to_device(array, self.words.device)

    def index(self, places: list[int]) -> torch.Tensor:
        """Copy indices to the device as int32, without waiting for the stream."""
        return self.to_device(np.array(places, np.int32))

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetched:
        """Start to copy results to host memory. The copies run once the stream has computed the
        results."""
        if not self._cuda:
            return Fetched([tensor.clone() for tensor in tensors], None)
        pinned = [torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors]
        for target, tensor in zip(pinned, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)
        return Fetched(pinned, self._mark())

    def _mark(self) -> Any:
        if not self._cuda:
            return None
        event: Any = torch.cuda.Event()
        event.record()
        return event
