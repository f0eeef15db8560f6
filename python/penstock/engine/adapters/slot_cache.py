"""Keeps adapter revisions in the adapter slots of an engine, and counts the requests that use them.

The files stay on disk. If a request needs a revision that is not in memory, its files are read
again, and the least recently used revision is evicted to make room. This module knows no aliases
and no scheduling.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_folder import read_adapter
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.config import LoraSettings
from penstock.engine.types import AdapterSource, AdapterState
from penstock.kernels.lora_slots import PackedAdapter
from penstock.runtime.adapters import RuntimeAdapters
from penstock.scheduler import NO_ADAPTER

log = logging.getLogger(__name__)


def unknown_revision() -> InvalidRequest:
    """Return the error for a revision that the engine does not have."""
    return InvalidRequest(
        "the engine has no adapter of that generation", field="adapter", code="adapter_not_found"
    )


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="penstock-adapters")


@dataclass(slots=True)
class _CachedRevision:
    """One adapter revision and its state in the cache.

    `source`: the folder with its files, and whether it is pinned.
    `rank`, `size_bytes`: 0 until the files have been read once.
    `retired`: it gets no new leases and is freed when the last lease ends.
    `leases`: number of requests that need the revision.
    `users`: number of these requests that compute with its slot.
    `slot`: its adapter slot, NO_ADAPTER while it is not in memory.
    `draining`: it gets no further users, so that another revision can have its slot.
    `last_use`: number of its last use; a smaller one is evicted first.
    `asked`: futures of callers that wait until it is loaded.
    """

    source: AdapterSource
    rank: int = 0
    size_bytes: int = 0
    retired: bool = False
    leases: int = 0
    users: int = 0
    slot: int = NO_ADAPTER
    draining: bool = False
    last_use: int = 0
    asked: list[Future[AdapterState]] = field(default_factory=list)

    @property
    def resident(self) -> bool:
        return self.slot != NO_ADAPTER

    @property
    def idle(self) -> bool:
        """Whether the revision may be evicted: it has no users and will get none."""
        return self.users == 0 and (self.leases == 0 or self.draining)

    @property
    def wanted(self) -> bool:
        """Whether the revision should be loaded, because a request, a caller or a pin needs it."""
        if self.resident:
            return self.draining
        return bool(self.leases or self.asked or self.source.pinned)

    def state(self) -> AdapterState:
        return AdapterState(
            revision=self.source.revision,
            rank=self.rank,
            bytes=self.size_bytes,
            retired=self.retired,
            active_leases=self.leases,
            resident=self.resident,
        )


@dataclass(frozen=True, slots=True)
class _LoadedFiles:
    """The result of reading a revision's files in the reader thread: the packed adapter or an
    error."""

    revision: str
    rank: int = 0
    packed: PackedAdapter | None = None
    error: ServiceError | None = None


class LoRASlotCache:
    """A least-recently-used cache of adapter slots. One thread calls all methods.

    Revisions are read one at a time in a separate thread, which calls `wake` when `collect` has
    something to do. Pinned revisions always leave enough memory for any one of the other revisions.
    """

    def __init__(
        self, runtime: RuntimeAdapters, limits: LoraSettings, wake: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._wake = wake
        self._revisions: dict[str, _CachedRevision] = {}
        self._free_slots = list(range(runtime.capacity - 1, -1, -1))
        self._resident_bytes = 0
        self._wanted: deque[str] = deque()
        self._reading: str | None = None
        self._read: SimpleQueue[_LoadedFiles] = SimpleQueue()
        self._reader = _one_thread()
        self._news: dict[str, ServiceError | None] = {}
        self._clock = 0

    @property
    def has_completions(self) -> bool:
        """Whether `collect` has something to do."""
        return bool(self._news) or not self._read.empty()

    def add(self, source: AdapterSource) -> Future[AdapterState]:
        """Register a revision and load it into memory if there is room. If it is registered
        already, only update whether it is pinned.

        The future fails with AdapterRefused if the files are faulty, or if pinning the revision
        would leave too little room for another one. A new revision is then not registered.
        """
        future: Future[AdapterState] = Future()
        one = self._revisions.get(source.revision)
        if one is None:
            one = self._revisions[source.revision] = _CachedRevision(source)
        elif (error := self._room_error(source, one.size_bytes)) is not None:
            future.set_exception(error)
            return future
        one.source, one.retired = source, False
        if one.size_bytes and (one.resident or not source.pinned):
            future.set_result(one.state())
            self._start_reading()  # an unpinned revision may make room
            return future
        one.asked.append(future)
        self._request_load(one)
        return future

    def retire(self, revision: str) -> None:
        """Refuse new leases of a revision and free it when its last lease ends. May be repeated."""
        one = self._revisions.get(revision)
        if one is not None:
            one.retired = True
            self._free_if_over(one)

    def states(self) -> tuple[AdapterState, ...]:
        """Return the state of every revision that has been loaded, whether in memory or not."""
        return tuple(one.state() for one in self._revisions.values() if one.size_bytes)

    def lease(self, revision: str) -> None:
        """Lease a revision to a request until `release`. A retired revision can be leased only
        while another lease of it exists, so that all choices of a request get it. Raises
        InvalidRequest if the revision cannot be leased."""
        one = self._revisions.get(revision)
        if one is None or (one.retired and not one.leases):
            raise unknown_revision()
        one.leases += 1

    def release(self, revision: str, *, entered: bool) -> None:
        """End a request's lease of a revision. `entered`: `enter` gave the request a slot."""
        one = self._revisions[revision]
        one.leases -= 1
        one.users -= entered
        assert one.leases >= one.users >= 0
        self._free_if_over(one)
        self._start_reading()

    def enter(self, revision: str) -> int | None:
        """Return the slot of a leased revision, valid until `release`. If the revision is not in
        memory, request its load and return None; call `enter` again when `collect` returns the
        revision."""
        one = self._revisions[revision]
        if not one.resident or one.draining:
            self._request_load(one)
            return None
        one.users += 1
        one.last_use = self._next_use()
        return one.slot

    def collect(self) -> dict[str, ServiceError | None]:
        """Put the revisions that were read since the last call into slots; call it between steps.
        Return the revisions whose waiting requests can call `enter` again (None) or must fail (with
        the error)."""
        news, self._news = self._news, {}
        while not self._read.empty():
            read = self._read.get()
            self._reading = None
            one = self._revisions.get(read.revision)
            if one is not None:
                news[read.revision] = self._take(one, read)
        self._start_reading()
        return news

    def resident(self) -> tuple[AdapterSource, ...]:
        """Return the revisions in memory."""
        return tuple(one.source for one in self._revisions.values() if one.resident)

    def switch(self, runtime: RuntimeAdapters, packed: Mapping[str, PackedAdapter]) -> bool:
        """Use the slots of other weights of the same model, in which each revision in memory gets
        the slot number that it has. `packed`: revision -> its adapter, packed for these weights.
        Return False and change nothing if `packed` lacks a revision in memory, or if one is being
        read for the old weights. Call this between steps."""
        resident = [one for one in self._revisions.values() if one.resident]
        if any(one.source.revision not in packed for one in resident):
            return False
        if self._reading is not None or not self._read.empty():
            return False
        self._runtime = runtime
        for one in resident:
            adapter = packed[one.source.revision]
            runtime.install(one.slot, adapter)
            self._resident_bytes += adapter.size_bytes - one.size_bytes
            one.size_bytes = adapter.size_bytes
        return True

    def read(self, source: AdapterSource, runtime: RuntimeAdapters) -> PackedAdapter:
        """Read the files of a revision and pack it for `runtime`. May run in any thread. Raises
        ServiceError."""
        folder, revision = Path(source.folder), source.revision
        return runtime.pack(read_adapter(folder, runtime.spec, self._limits, revision))

    def close(self) -> None:
        """Wait until the reader thread has finished its current read, and end it."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _next_use(self) -> int:
        self._clock += 1
        return self._clock

    def _request_load(self, one: _CachedRevision) -> None:
        revision = one.source.revision
        if revision not in self._wanted and revision != self._reading:
            self._wanted.append(revision)
        self._start_reading()

    def _start_reading(self) -> None:
        """Start to read the first wanted revision that has room or whose size is not known yet."""
        if self._reading is not None:
            return
        self._reopen_drained()
        for revision in tuple(self._wanted):
            one = self._revisions.get(revision)
            if one is None or not one.wanted:
                self._wanted.remove(revision)
            elif one.resident:
                continue
            elif (error := self._room_error(one.source, one.size_bytes)) is not None:
                self._wanted.remove(revision)  # retired, and another revision was pinned meanwhile
                self._news[revision] = error
                self._drop_failed(one, error)
            elif not one.size_bytes or self._make_room(one):
                self._wanted.remove(revision)
                self._reading = revision
                self._begin_reading(one.source)
                return

    def _begin_reading(self, source: AdapterSource) -> None:
        try:
            self._reader.submit(self._read_files, source)
        except RuntimeError:  # no thread: fail this load, not the engine
            self._reader = _one_thread()  # the old executor would still run it later
            refused = AdapterRefused("lora_load_task_failed", "there is no thread to read it now")
            self._read.put(_LoadedFiles(source.revision, error=refused))
            self._wake()

    def _reopen_drained(self) -> None:
        """Cancel all draining if no wanted revision needs a slot any more."""
        wanted = [self._revisions.get(revision) for revision in self._wanted]
        if any(one is not None and not one.resident and one.wanted for one in wanted):
            return
        for revision, one in self._revisions.items():
            if one.draining:
                one.draining = False
                self._news[revision] = None

    def _read_files(self, source: AdapterSource) -> None:
        """Read and pack the files of a revision. Runs in the reader thread."""
        revision = source.revision
        try:
            spec = self._runtime.spec
            adapter = read_adapter(Path(source.folder), spec, self._limits, revision)
            read = _LoadedFiles(revision, adapter.rank, self._runtime.pack(adapter))
        except ServiceError as error:
            read = _LoadedFiles(revision, error=error)
        except Exception:  # the reader's outermost loop
            log.exception("adapter %s cannot be loaded", revision)
            failed = AdapterRefused("lora_load_task_failed", "the adapter could not be loaded")
            read = _LoadedFiles(revision, error=failed)
        self._read.put(read)
        self._wake()

    def _take(self, one: _CachedRevision, read: _LoadedFiles) -> ServiceError | None:
        """Put a revision that was read into a slot, if there is room. Return the error if its load
        failed."""
        error = read.error
        if read.packed is not None:
            error = self._room_error(one.source, read.packed.size_bytes)
        if error is not None:
            self._drop_failed(one, error)
            return error
        assert read.packed is not None
        one.rank, one.size_bytes = read.rank, read.packed.size_bytes
        if self._make_room(one):
            one.slot, one.last_use = self._free_slots.pop(), self._next_use()
            self._resident_bytes += one.size_bytes
            self._runtime.install(one.slot, read.packed)
        asked, one.asked = one.asked, []
        if one.wanted:
            self._request_load(one)
        for future in asked:
            future.set_result(one.state())
        self._free_if_over(one)
        return None

    def _drop_failed(self, one: _CachedRevision, error: ServiceError) -> None:
        """Report a failed load to its callers. Drop a new revision, but keep one that was loaded
        before, since its files may become readable again."""
        if not one.size_bytes:
            one.retired = True
        asked, one.asked = one.asked, []
        for future in asked:
            future.set_exception(error)
        self._free_if_over(one)

    def _room_error(self, source: AdapterSource, size_bytes: int) -> AdapterRefused | None:
        """Return an error if a revision can never fit, or if pinning it would leave too little room
        for another revision, whose requests would then wait for ever. Otherwise return None."""
        others = [o for o in self._revisions.values() if o.source.revision != source.revision]
        left = self._runtime.max_bytes - sum(o.size_bytes for o in others if o.source.pinned)
        if size_bytes > left:
            return AdapterRefused(
                "lora_byte_limit_exceeded",
                f"the adapter takes {size_bytes} bytes; lora_max_bytes and what is pinned leave "
                f"{left}",
            )
        moving = (o.size_bytes for o in others if not o.source.pinned and not o.retired)
        largest = max(moving, default=0)
        if source.pinned and largest > left - size_bytes:
            return AdapterRefused(
                "lora_byte_limit_exceeded",
                f"pinned, the adapter leaves {left - size_bytes} bytes of lora_max_bytes; one that "
                f"is loaded takes {largest}",
            )
        return None

    def _make_room(self, one: _CachedRevision) -> bool:
        """Free a slot and memory for a revision by evicting idle revisions, least recently used
        first. Return whether it fits now. If too few are idle and the revision is needed, start to
        drain the least recently used revision."""
        while not self._free_slots or (
            self._resident_bytes + one.size_bytes > self._runtime.max_bytes
        ):
            movable = [o for o in self._revisions.values() if o.resident and not o.source.pinned]
            idle = [other for other in movable if other.idle]
            if idle:
                self._evict(min(idle, key=_last_use))
                continue
            used = [other for other in movable if other.users]
            waited_for = one.leases or one.source.pinned
            if used and waited_for and not any(other.draining for other in movable):
                min(used, key=_last_use).draining = True
            return False
        return True

    def _evict(self, one: _CachedRevision) -> None:
        self._runtime.clear(one.slot)
        self._free_slots.append(one.slot)
        self._resident_bytes -= one.size_bytes
        one.slot, one.draining = NO_ADAPTER, False
        if one.leases and one.source.revision not in self._wanted:
            self._wanted.append(one.source.revision)

    def _free_if_over(self, one: _CachedRevision) -> None:
        revision = one.source.revision
        if not one.retired or one.leases or one.asked or self._reading == revision:
            return
        if one.resident:
            self._evict(one)
        self._revisions.pop(revision, None)


def _last_use(one: _CachedRevision) -> int:
    return one.last_use
