"""The adapters of a device: they come beside the steps, and a step waits for those it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from penstock.adapters.adapter import Adapter
from penstock.kernels.lora import Packed
from penstock.runtime.adapters import SlotAdapters
from penstock.runtime.gpu_lane import Lane


class DeviceAdapters:
    """`RuntimeAdapters` whose slots are filled by a lane: copies from pinned memory, for which only
    a step waits that admits a row with the slot. A slot is emptied when the steps that were
    launched before are over: one that was planned ahead may still compute a row that is gone.

    `pack` is for any thread; the others are the runtime's own.
    """

    def __init__(self, own: SlotAdapters, lane: Lane, device: torch.device) -> None:
        self.spec = own.spec
        self.capacity = own.capacity
        self.max_rank = own.max_rank
        self.max_bytes = own.max_bytes
        self._own = own
        self._lane = lane
        self._arriving: dict[int, Any] = {}
        if device.type == "cuda":  # the allocator keeps it for the lane, and cuts pieces from it
            lane.run(lambda: _reserve(own.max_bytes, device))

    def pack(self, adapter: Adapter) -> Packed:
        """See `RuntimeAdapters`: into pinned memory."""
        with self._lane.on_device():
            return self._own.pack(adapter)

    def install(self, slot: int, packed: Packed) -> None:
        """See `RuntimeAdapters`: the copies are launched, nobody waits for them yet."""
        self._arriving[slot] = self._lane.run(lambda: self._own.install(slot, packed))

    def clear(self, slot: int) -> None:
        """See `RuntimeAdapters`. Its memory is written to again by the lane alone, and so after the
        steps that may read it."""
        self._arriving.pop(slot, None)
        self._lane.follow_steps()
        self._lane.run(lambda: self._own.clear(slot))

    def await_slots(self, slots: Iterable[int]) -> None:
        """The steps from now on read these slots."""
        for slot in slots:
            if slot in self._arriving:
                self._lane.let_steps_wait(self._arriving.pop(slot))


def _reserve(size_bytes: int, device: torch.device) -> None:
    torch.empty(size_bytes, dtype=torch.uint8, device=device)
