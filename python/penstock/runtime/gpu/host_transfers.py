"""Between host memory and a device: packed words there, small results back, nobody waiting in
between.

On a CUDA device the host's ends are pinned, copies are ordered by the current stream, and a ring of
staging buffers lets the host write the next step while the last ones are still being copied. On
"cpu", for rehearsals, a copy is done when it is asked for, so one buffer is all of the ring; and
the host's end is no tensor, since who counts tensors wants to know what a device would hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

RING = 4
"""Staging buffers: more than the steps that may be in flight, so that none is waited for."""


class Fetched:
    """Results on their way to the host."""

    def __init__(self, tensors: Sequence[torch.Tensor], arrived: Any) -> None:
        self._tensors = tensors
        self._arrived = arrived

    def wait(self) -> list[npt.NDArray[Any]]:
        """The results as arrays, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


class HostTransfers:
    """The way to and from `device`. `num_words`: of the largest upload."""

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
        """Where the next upload is written; the same until `send`."""
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
            self._copied[self._next] = None
        return self._written[self._next]

    def send(self, num_words: int) -> None:
        """Copy the first words of the staging buffer to `words`, after what the stream has to do
        so far."""
        staged = self._pinned[self._next] if self._cuda else torch.from_numpy(self.staging())
        self.words[:num_words].copy_(staged[:num_words], non_blocking=True)
        self._copied[self._next] = self._mark()
        self._next = (self._next + 1) % RING

    def there(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A short array on the device, without waiting for what the stream has to do."""
        here = torch.from_numpy(array)
        if self._cuda:
            here = here.pin_memory()
        return here.to(self.words.device, non_blocking=True)

    def index(self, places: list[int]) -> torch.Tensor:
        """Some indices on the device, int32; see `there`."""
        return self.there(np.array(places, np.int32))

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetched:
        """Copies of results, made when the stream has computed them."""
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
