"""The cache of adapter slots: over slots that only note what is installed, and real folders."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.adapters.adapter import Adapter
from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import InvalidRequest
from penstock.config import LoraSettings
from penstock.engine.adapters.slot_cache import LoRASlotCache
from penstock.engine.types import AdapterSource, AdapterState
from tests.support.checkpoints.lora_adapters import SMALL, write_adapter
from tests.support.thread_exhaustion import fail_thread_starts

ONE = 1000


@dataclass
class Noted:
    revision: str
    size_bytes: int = ONE


@dataclass
class NotingSlots:
    """Slots for `capacity` adapters of `ONE` bytes each; packing waits for `gate`."""

    capacity: int = 2
    max_bytes: int = 10 * ONE
    max_rank: int = 8
    spec = SMALL
    gate: threading.Event = field(default_factory=threading.Event)
    installed: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    def pack(self, adapter: Adapter) -> Noted:
        self.gate.wait(10)
        return Noted(adapter.revision)

    def install(self, slot: int, packed: Noted) -> None:
        assert slot not in self.installed, "a slot in use is overwritten"
        self.installed[slot] = packed.revision

    def clear(self, slot: int) -> None:
        del self.installed[slot]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "one")


class Pool:
    """A slot cache, its slots, and steps that apply finished reads."""

    def __init__(self, folder: Path, **sizes: int) -> None:
        self.slots = NotingSlots(**sizes)
        self._folder = folder
        self._woken = threading.Semaphore(0)
        self.pool = LoRASlotCache(self.slots, LoraSettings(max_rank=8), self._woken.release)

    def add(self, name: str, *, pinned: bool = False) -> Future[AdapterState]:
        return self.pool.add(AdapterSource(name, str(self._folder), pinned))

    def have(self, *names: str) -> None:
        for name in names:
            future = self.add(name)
            self.step()
            assert future.result(0).revision == name

    def step(self) -> dict[str, object]:
        """Return the events of the current reads."""
        assert self._woken.acquire(timeout=10)
        return dict(self.pool.collect())

    def use(self, name: str) -> int | None:
        self.pool.lease(name)
        return self.pool.enter(name)

    @property
    def resident(self) -> set[str]:
        noted = set(self.slots.installed.values())
        assert noted == {one.revision for one in self.pool.states() if one.resident}
        return noted


def test_more_generations_are_had_than_are_in_memory_and_the_oldest_use_makes_room(
    folder: Path,
) -> None:
    one = Pool(folder)
    one.have("a", "b")
    assert one.use("a") is not None
    one.pool.release("a", entered=True)
    one.have("c")
    assert one.resident == {"a", "c"}
    assert {state.revision for state in one.pool.states()} == {"a", "b", "c"}
    assert one.use("a") is not None
    one.pool.release("a", entered=True)
    assert one.use("b") is None
    assert one.step() == {"b": None}
    assert one.pool.enter("b") is not None
    assert one.resident == {"a", "b"}


def test_bytes_bound_what_is_in_memory(folder: Path) -> None:
    one = Pool(folder, capacity=8, max_bytes=3 * ONE)
    one.have("a", "b", "c", "d")
    assert one.resident == {"b", "c", "d"}
    tiny = Pool(folder, max_bytes=ONE - 1)
    future = tiny.add("a")
    tiny.step()
    with pytest.raises(AdapterRefused, match="takes 1000 bytes") as refused:
        future.result(0)
    assert refused.value.code == "lora_byte_limit_exceeded" and tiny.pool.states() == ()


def test_one_that_is_in_use_is_never_replaced_in_its_slot(folder: Path) -> None:
    one = Pool(folder)
    one.have("a", "b", "c")
    assert one.use("b") is not None and one.use("c") is not None
    assert one.use("a") is None, "both slots are in use"
    assert one.resident == {"b", "c"}
    one.pool.release("c", entered=True)
    assert one.step() == {"a": None}
    assert one.pool.enter("a") is not None
    assert one.resident == {"a", "b"}


def test_requests_of_the_others_do_not_starve_one_that_waits(folder: Path) -> None:
    one = Pool(folder)
    one.have("a", "b", "c")
    first = one.use("b")
    assert first is not None and one.use("c") is not None and one.use("a") is None
    assert one.use("b") is None, "it gets no further user until the one that waits had its turn"
    one.pool.release("b", entered=True)
    assert one.step() == {"a": None}
    assert one.pool.enter("a") == first
    one.pool.release("a", entered=True)
    assert one.step() == {"b": None}
    assert one.pool.enter("b") is not None


def test_one_that_was_to_make_room_goes_on_when_nobody_waits_any_more(folder: Path) -> None:
    one = Pool(folder)
    one.have("a", "b", "c")
    assert one.use("b") is not None and one.use("c") is not None and one.use("a") is None
    assert one.use("b") is None
    one.pool.release("a", entered=False)  # it was aborted
    assert one.pool.has_completions
    assert one.pool.collect() == {"b": None}
    assert one.pool.enter("b") is not None


def test_a_pinned_one_stays(folder: Path) -> None:
    one = Pool(folder)
    future = one.add("kept", pinned=True)
    one.step()
    assert future.result(0).resident
    one.have("a", "b", "c")
    assert one.resident == {"kept", "c"}


def refusal(future: Future[AdapterState]) -> str:
    with pytest.raises(AdapterRefused) as refused:
        future.result(0)
    return refused.value.code


def test_a_pin_that_leaves_no_room_for_one_that_is_here_is_refused(folder: Path) -> None:
    one = Pool(folder, max_bytes=3 * ONE // 2)
    one.have("a")
    future = one.add("b", pinned=True)
    one.step()
    assert refusal(future) == "lora_byte_limit_exceeded"
    assert one.resident == {"a"} and len(one.pool.states()) == 1
    one.have("b")
    assert refusal(one.add("b", pinned=True)) == "lora_byte_limit_exceeded"
    assert one.use("a") is None
    assert one.step() == {"a": None}
    assert one.pool.enter("a") is not None


def test_a_retired_one_that_pins_leave_no_room_for_fails_its_requests(folder: Path) -> None:
    one = Pool(folder, max_bytes=3 * ONE // 2)
    one.have("a")
    assert one.use("a") is not None
    one.pool.retire("a")
    one.add("b", pinned=True)
    assert one.step() == {"b": None}
    assert one.use("a") is None, "the next choice of the same request"
    one.pool.release("a", entered=True)
    assert one.step() == {"b": None}
    assert one.pool.has_completions
    (error,) = one.pool.collect().values()
    assert isinstance(error, AdapterRefused) and error.code == "lora_byte_limit_exceeded"
    assert refusal(one.add("a")) == "lora_byte_limit_exceeded"
    one.pool.release("a", entered=False)
    assert one.resident == {"b"} and len(one.pool.states()) == 1


def test_one_that_is_pinned_no_longer_makes_room(folder: Path) -> None:
    one = Pool(folder)
    one.have("a", "b")
    kept = one.add("kept", pinned=True)
    one.step()
    assert kept.result(0).resident
    assert one.use("b") is not None and one.use("a") is None
    assert one.add("kept").result(0).resident
    assert one.step() == {"a": None}
    assert one.pool.enter("a") is not None
    assert one.resident == {"a", "b"}


def test_a_retired_one_goes_with_its_last_lease(folder: Path) -> None:
    one = Pool(folder)
    one.have("a")
    assert one.use("a") is not None and one.use("a") is not None
    one.pool.retire("a")
    one.pool.release("a", entered=True)
    (state,) = one.pool.states()
    assert (state.retired, state.active_leases, state.resident) == (True, 1, True)
    one.pool.lease("a")  # the next choice of the same request
    one.pool.release("a", entered=False)
    one.pool.release("a", entered=True)
    assert one.pool.states() == () and one.slots.installed == {}
    one.pool.retire("a")
    with pytest.raises(InvalidRequest) as refused:
        one.pool.lease("a")
    assert refused.value.code == "adapter_not_found"


def test_one_that_comes_back_before_it_is_gone_is_the_same(folder: Path) -> None:
    one = Pool(folder)
    one.have("a")
    assert one.use("a") is not None
    one.pool.retire("a")
    assert one.add("a").result(0).resident
    one.pool.release("a", entered=True)
    assert one.resident == {"a"}


def test_files_that_are_wrong_leave_nothing(folder: Path, tmp_path: Path) -> None:
    one = Pool(folder)
    wrong = write_adapter(tmp_path / "wrong", rank=9)
    futures = [one.pool.add(AdapterSource("a", str(path))) for path in (wrong, wrong)]
    one.step()
    for future in futures:
        with pytest.raises(AdapterRefused) as refused:
            future.result(0)
        assert refused.value.code == "lora_rank_limit_exceeded"
    assert one.pool.states() == () and one.slots.installed == {}
    with pytest.raises(InvalidRequest):
        one.pool.lease("a")
    one.have("a")


def test_a_load_without_a_thread_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Pool(folder)
    with monkeypatch.context() as crowded:
        fail_thread_starts(crowded)
        future = one.add("a")
        one.step()
    assert refusal(future) == "lora_load_task_failed"
    assert one.pool.states() == ()
    one.have("a")
    assert one.resident == {"a"}


def test_files_that_went_away_fail_the_requests_that_need_them(
    folder: Path, tmp_path: Path
) -> None:
    one = Pool(folder, capacity=1)
    gone = write_adapter(tmp_path / "gone")
    one.pool.add(AdapterSource("a", str(gone)))
    one.step()
    one.have("b")
    (gone / "adapter_config.json").unlink()
    assert one.use("a") is None
    (error,) = one.step().values()
    assert isinstance(error, AdapterRefused) and error.code == "adapter_file_not_found"
    one.pool.release("a", entered=False)
    assert one.resident == set() and len(one.pool.states()) == 2


def test_one_that_cannot_be_read_to_be_pinned_is_there_as_before(
    folder: Path, tmp_path: Path
) -> None:
    one = Pool(folder, capacity=1)
    away = write_adapter(tmp_path / "away")
    one.pool.add(AdapterSource("a", str(away)))
    one.step()
    one.have("b")
    away.rename(tmp_path / "elsewhere")
    future = one.pool.add(AdapterSource("a", str(away), pinned=True))
    one.step()
    assert refusal(future) == "adapter_file_not_found"
    (tmp_path / "elsewhere").rename(away)
    assert one.pool.add(AdapterSource("a", str(away))).result(0).revision == "a"
    assert one.use("a") is None
    assert one.step() == {"a": None}
    assert one.pool.enter("a") is not None


def test_a_load_holds_nobody_up(folder: Path) -> None:
    one = Pool(folder)
    one.have("a")
    one.slots.gate.clear()
    future = one.add("b")
    began = time.monotonic()
    assert one.use("a") is not None
    assert one.pool.collect() == {} and not future.done()
    assert time.monotonic() - began < 5, "nothing waited for the gate"
    one.pool.retire("b")
    one.slots.gate.set()
    assert one.step() == {"b": None}
    assert future.result(0).retired and one.resident == {"a"}
