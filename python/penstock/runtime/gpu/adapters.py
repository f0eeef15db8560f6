"""LoRA adapters on a device. They are copied in parallel with the steps; a step waits only for the
adapters that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from penstock.adapters.adapter import Adapter
from penstock.kernels.lora_slots import PackedAdapter
from penstock.runtime.adapters import SlotAdapters
from penstock.runtime.gpu.copy_stream import CopyStream


class DeviceAdapters:
    """`RuntimeAdapters` whose slots are filled from pinned memory on a copy stream.

    A step waits for the copies to a slot only if it admits a row with that slot. A slot is cleared
    after all steps that were launched before, because a step planned ahead may still compute a row
    that has finished. Any thread may call `pack`; only the runtime's thread may call the other
    methods.
    """

    def __init__(self, own: SlotAdapters, copy_stream: CopyStream, device: torch.device) -> None:
        self.spec = own.spec
        self.capacity = own.capacity
        self.max_rank = own.max_rank
        self.max_bytes = own.max_bytes
        self._own = own
        self._copy_stream = copy_stream
        self._arriving: dict[int, Any] = {}
        if device.type == "cuda":
            # The allocator keeps this memory and allocates the adapters of the copy stream in it.
            copy_stream.run(lambda: _reserve(own.max_bytes, device))

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """Pack an adapter into pinned memory; see `RuntimeAdapters.pack`."""
        with self._copy_stream.on_device():
            return self._own.pack(adapter)

    def install(self, slot: int, packed: PackedAdapter) -> None:
        """Launch the copies of a packed adapter to `slot`; see `RuntimeAdapters.install`. Steps
        wait for the copies only after `await_slots`."""
        self._arriving[slot] = self._copy_stream.run(lambda: self._own.install(slot, packed))

    def clear(self, slot: int) -> None:
        """Free the memory of the adapter in `slot`; see `RuntimeAdapters.clear`. The memory is
        reused only on the copy stream, and so only after the steps that may read it."""
        self._arriving.pop(slot, None)
        self._copy_stream.wait_for_steps()
        self._copy_stream.run(lambda: self._own.clear(slot))

    def await_slots(self, slots: Iterable[int]) -> None:
        """Make steps that are launched from now on wait for the copies to these slots."""
        for slot in slots:
            if slot in self._arriving:
                self._copy_stream.make_steps_wait(self._arriving.pop(slot))


def _reserve(size_bytes: int, device: torch.device) -> None:
    torch.empty(size_bytes, dtype=torch.uint8, device=device)
