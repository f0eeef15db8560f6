"""The runtime of a tensor-parallel model. Rank 0 sends every action to the other ranks before it
executes the action itself, so that all ranks execute the same actions in the same order."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

import msgspec

from penstock.adapters.adapter import Adapter
from penstock.adapters.errors import AdapterRefused
from penstock.adapters.shard import shard_adapter
from penstock.kernels.lora_slots import PackedAdapter
from penstock.kernels.torch_communicator import TorchCommunicator
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.gpu.adapters import DeviceAdapters
from penstock.runtime.gpu.cuda_graphs import StepForm
from penstock.runtime.gpu.runtime import DEVICE_SAMPLING, GpuRuntime
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.ranks.media import TensorParallelMedia
from penstock.runtime.ranks.messages import Clear, Collect, Drop, Install, Step, Warm, send_adapter
from penstock.runtime.ranks.process_group import RankProcess, RankProcessGroup, checking_ranks
from penstock.scheduler.types import StepPlan, StepResult

LEAVE_TIMEOUT_S: Final = 5.0


def leave(communicator: TorchCommunicator) -> None:
    """Leave the process group. Return after a timeout even if the other ranks do not leave."""
    leaving = threading.Thread(target=communicator.close, name="penstock-leaving", daemon=True)
    leaving.start()
    leaving.join(LEAVE_TIMEOUT_S)


class TensorParallelRuntime:
    """The `Runtime` of rank 0. `own`: the runtime of rank 0's shard. `spec`: describes the whole
    model."""

    def __init__(
        self,
        own: GpuRuntime,
        processes: RankProcessGroup,
        communicator: TorchCommunicator,
        spec: DecoderSpec,
    ) -> None:
        self._own = own
        self._processes = processes
        self._communicator = communicator
        self._last_restored = 0
        self._media: TensorParallelMedia | None = None
        if own.media is not None:
            self._media = TensorParallelMedia(own, processes, communicator.broadcast)
        self._adapters: TensorParallelAdapters | None = None
        if own.adapters is not None:
            self._adapters = TensorParallelAdapters(own.adapters, processes, spec)

    @property
    def info(self) -> RuntimeInfo:
        return self._own.info

    @property
    def report(self) -> str:
        return self._own.report

    @property
    def media(self) -> TensorParallelMedia | None:
        return self._media

    @property
    def live_weights(self) -> None:
        return None

    @property
    def adapters(self) -> TensorParallelAdapters | None:
        return self._adapters

    @property
    def captured(self) -> list[tuple[int, StepForm]]:
        """Size and form of each captured graph, in the order of the captures; the same on every
        rank."""
        return self._own.captured

    def warm(self, *rows: int, form: StepForm = DEVICE_SAMPLING) -> None:
        """Capture the graphs for decode steps with these numbers of rows, on every rank."""
        with checking_ranks(self._processes):
            self._processes.send_all(Warm(rows, form))
            self._own.warm(*rows, form=form)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Submit a step on every rank; see `Runtime.submit`. The scheduler uses restored blocks
        once their restores are complete on rank 0, so the other ranks must wait until these
        restores are complete on their devices."""
        sent = plan
        if plan.awaits < self._last_restored:
            sent = msgspec.structs.replace(plan, awaits=self._last_restored)
        with checking_ranks(self._processes):
            if self._adapters is not None:
                self._adapters.send_drops()
            self._processes.send_all(Step(sent, masks is not None))
            self._own.submit(plan, masks)

    def collect(self) -> StepResult:
        """Wait for the oldest step in flight and return its result; see `Runtime.collect`."""
        with checking_ranks(self._processes):
            self._processes.send_all(Collect())
            result = self._own.collect()
        self._last_restored = result.last_restored
        return result

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Submit a step and collect its result in one call."""
        self.submit(plan, masks)
        return self.collect()

    def prepare(self) -> bool:
        """Capture one more graph, the same on every rank. See `Runtime.prepare`."""
        missing = self._own.missing_graph()
        if missing is None:
            return False
        size, form = missing
        self.warm(size, form=form)
        return True

    def close(self) -> None:
        """Release memory and threads, end the processes of the other ranks, and remove their
        sockets and files. See `Runtime.close`."""
        self._processes.disconnect()
        self._adapters = self._media = None
        self._own.close()
        leave(self._communicator)
        self._processes.close()


class _PackedShards:
    """An adapter that all ranks have packed.

    `own`: the packed shard of rank 0.
    `ticket`: names the shards that the other ranks keep until they install or drop them.
    `dropped`: called with the ticket if this object is garbage-collected without `install`.
    """

    def __init__(self, own: PackedAdapter, ticket: int, dropped: Callable[[int], None]) -> None:
        self.own = own
        self.ticket = ticket
        self.end = weakref.finalize(self, dropped, ticket)
        self.end.atexit = False

    @property
    def size_bytes(self) -> int:
        """Size of the packed shard on each device."""
        return self.own.size_bytes


class TensorParallelAdapters:
    """`RuntimeAdapters` of all ranks. A packed adapter is either installed once or dropped. Any
    thread may call `pack`; only the runtime's thread may call the other methods."""

    def __init__(self, own: DeviceAdapters, processes: RankProcessGroup, spec: DecoderSpec) -> None:
        self.spec = spec
        self.capacity = own.capacity
        self.max_rank = own.max_rank
        self.max_bytes = own.max_bytes
        self._own = own
        self._processes = processes
        self._packing = threading.Lock()
        self._tickets = itertools.count(1)
        self._dropped: SimpleQueue[int] = SimpleQueue()

    def pack(self, adapter: Adapter) -> _PackedShards:
        """Pack an adapter on every rank; see `RuntimeAdapters.pack`. Raises AdapterRefused if a
        rank cannot pack its shard; then no rank keeps its shard."""
        with self._packing:
            ticket = next(self._tickets)
            try:
                return self._pack(adapter, ticket)
            except OSError:
                self._processes.end_if_rank_died()
                raise

    def install(self, slot: int, packed: PackedAdapter) -> None:
        """Install a packed adapter in `slot` on every rank; see `RuntimeAdapters.install`."""
        assert isinstance(packed, _PackedShards), "packed by another runtime"
        packed.end.detach()
        self._processes.send_all(Install(slot, packed.ticket))
        self._own.install(slot, packed.own)

    def clear(self, slot: int) -> None:
        """Free the memory of the adapter in `slot` on every rank; see `RuntimeAdapters.clear`."""
        self._processes.send_all(Clear(slot))
        self._own.clear(slot)

    def send_drops(self) -> None:
        """Make the other ranks drop the packed adapters that will not be installed."""
        while not self._dropped.empty():
            self._processes.send_all(Drop(self._dropped.get()))

    def _pack(self, adapter: Adapter, ticket: int) -> _PackedShards:
        ranks = self._processes.ranks
        for rank in ranks:
            send_adapter(rank.adapters, ticket, self._shard(adapter, rank.number))
        try:
            own = self._own.pack(self._shard(adapter, 0))
        except Exception:
            self._dropped.put(ticket)
            raise
        finally:  # every rank answers, also after an error here
            errors = [_packing_error(rank, ticket) for rank in ranks]
        if any(errors):
            self._dropped.put(ticket)
            raise AdapterRefused("lora_load_task_failed", "; ".join(filter(None, errors)))
        return _PackedShards(own, ticket, self._dropped.put)

    def _shard(self, adapter: Adapter, rank: int) -> Adapter:
        return shard_adapter(adapter, self.spec, rank, 1 + len(self._processes.ranks))


def _packing_error(rank: RankProcess, ticket: int) -> str:
    """Wait for a rank's answer to PackAdapter. Return the reason if the rank could not pack its
    shard, else an empty string."""
    answer = rank.adapters.receive()
    if answer is None:
        raise ConnectionError(f"rank {rank.number} disconnected")
    assert answer.ticket == ticket
    return f"rank {rank.number}: {answer.error}" if answer.error else ""
