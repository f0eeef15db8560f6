"""The adapters of a device: they come beside the steps, and a step waits for those it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from penstock.adapters.adapter import Adapter
from penstock.kernels.lora_slots import PackedAdapter
from penstock.runtime.adapters import SlotAdapters
from penstock.runtime.gpu.copy_stream import CopyStream


class DeviceAdapters:
    """`RuntimeAdapters` whose slots are filled by a copy stream: copies from pinned memory, for
    which only
    a step waits that admits a row with the slot. A slot is emptied when the steps that were
    launched before are over: one that was planned ahead may still compute a row that is gone.

    `pack` is for any thread; the others are the runtime's own.
    """

    def __init__(self, own: SlotAdapters, copy_stream: CopyStream, device: torch.device) -> None:
        self.spec = own.spec
        self.capacity = own.capacity
        self.max_rank = own.max_rank
        self.max_bytes = own.max_bytes
        self._own = own
        self._copy_stream = copy_stream
        self._arriving: dict[int, Any] = {}
        if (
            device.type == "cuda"
        ):  # the allocator keeps it for the copy stream, and cuts pieces from it
            copy_stream.run(lambda: _reserve(own.max_bytes, device))

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """See `RuntimeAdapters`: into pinned memory."""
        with self._copy_stream.on_device():
            return self._own.pack(adapter)

    def install(self, slot: int, packed: PackedAdapter) -> None:
        """See `RuntimeAdapters`: the copies are launched, nobody waits for them yet."""
        self._arriving[slot] = self._copy_stream.run(lambda: self._own.install(slot, packed))

    def clear(self, slot: int) -> None:
        """See `RuntimeAdapters`. Its memory is written to again by the copy stream alone, and so
        after the
        steps that may read it."""
        self._arriving.pop(slot, None)
        self._copy_stream.follow_steps()
        self._copy_stream.run(lambda: self._own.clear(slot))

    def await_slots(self, slots: Iterable[int]) -> None:
        """The steps from now on read these slots."""
        for slot in slots:
            if slot in self._arriving:
                self._copy_stream.let_steps_wait(self._arriving.pop(slot))


def _reserve(size_bytes: int, device: torch.device) -> None:
    torch.empty(size_bytes, dtype=torch.uint8, device=device)
