"""Only the steps that read an adapter wait for its copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from penstock.kernels.lora_slots import SlotSizes
from penstock.kernels.ops.lora import ReferenceSlots
from penstock.runtime.adapters import SlotAdapters
from penstock.runtime.gpu.adapters import DeviceAdapters


class SlowCopyStream:
    """A copy stream that works only when waited for, and records the waits."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._work: list[Callable[[], None]] = []
        self._done = 0

    @contextmanager
    def on_device(self) -> Iterator[None]:
        yield

    def run(self, work: Callable[[], None]) -> int:
        self._work.append(work)
        return len(self._work)

    def wait_for_steps(self) -> None:
        self._work.append(lambda: self.notes.append("after the steps"))

    def make_steps_wait(self, event: int) -> None:
        self.notes.append(f"steps wait for {event}")
        self.catch_up(event)

    def catch_up(self, event: int) -> None:
        for work in self._work[self._done : event]:
            work()
        self._done = max(self._done, event)


class RecordingSlots(ReferenceSlots):
    def __init__(self, notes: list[str]) -> None:
        super().__init__(SlotSizes(4, 8, ((8, (8,)),)))
        self._notes = notes

    def install(self, slot: int, packed: Any) -> None:
        self._notes.append(f"install {slot}")

    def clear(self, slot: int) -> None:
        self._notes.append(f"clear {slot}")


@pytest.fixture
def copy_stream() -> SlowCopyStream:
    return SlowCopyStream()


@pytest.fixture
def adapters(copy_stream: SlowCopyStream) -> DeviceAdapters:
    slots = RecordingSlots(copy_stream.notes)
    own: Any = SlotAdapters(None, slots.sizes, slots, 1000)  # type: ignore[arg-type]
    return DeviceAdapters(own, copy_stream, torch.device("cpu"))  # type: ignore[arg-type]


def test_only_the_first_step_that_reads_a_slot_waits_for_it(
    adapters: DeviceAdapters, copy_stream: SlowCopyStream
) -> None:
    packed = adapters.pack  # any object: the slots only record calls
    adapters.install(2, packed)  # type: ignore[arg-type]
    adapters.install(3, packed)  # type: ignore[arg-type]
    assert copy_stream.notes == [], "a load launches copies and waits for nothing"
    adapters.await_slots([-1, 0, 1])
    assert copy_stream.notes == []
    adapters.await_slots([2])
    adapters.await_slots([2])
    assert copy_stream.notes == ["steps wait for 1", "install 2"]
    adapters.await_slots([3, 2])
    assert copy_stream.notes[2:] == ["steps wait for 2", "install 3"]


def test_a_slot_is_reused_only_after_the_steps_that_may_read_it(
    adapters: DeviceAdapters, copy_stream: SlowCopyStream
) -> None:
    packed = adapters.pack
    adapters.install(1, packed)  # type: ignore[arg-type]
    adapters.await_slots([1])
    copy_stream.notes.clear()
    adapters.clear(1)
    adapters.install(1, packed)  # type: ignore[arg-type]
    assert copy_stream.notes == []
    adapters.await_slots([1])
    assert copy_stream.notes == ["steps wait for 4", "after the steps", "clear 1", "install 1"]


def test_no_step_waits_for_a_cleared_slot(
    adapters: DeviceAdapters, copy_stream: SlowCopyStream
) -> None:
    adapters.install(1, adapters.pack)  # type: ignore[arg-type]
    adapters.clear(1)
    adapters.await_slots([1])
    assert copy_stream.notes == []
