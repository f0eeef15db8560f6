"""The runtime of a model whose shards lie on several devices, one process each, as the engine sees
it: whatever rank 0 does, the others are told first, and do the same in the same order."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from penstock.runtime.gpu.runtime import FREE, GpuRuntime
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.ranks.messages import Clear, Collect, Drop, Install, Step, Warm, send_adapter
from penstock.runtime.ranks.process_group import RankProcess, RankProcessGroup
from penstock.scheduler.types import StepPlan, StepResult

LEAVE_TIMEOUT_S: Final = 5.0


def leave(ranks: TorchCommunicator) -> None:
    """Leave the other ranks, which do the same; in vain, but not for ever, where they do not."""
    leaving = threading.Thread(target=ranks.close, name="penstock-leaving", daemon=True)
    leaving.start()
    leaving.join(LEAVE_TIMEOUT_S)


class TensorParallelRuntime:
    """A `Runtime`: that of rank 0, whose own part is `own`. `spec`: of the whole model."""

    def __init__(
        self,
        own: GpuRuntime,
        processes: RankProcessGroup,
        ranks: TorchCommunicator,
        spec: DecoderSpec,
    ) -> None:
        self._own = own
        self._processes = processes
        self._ranks = ranks
        self._last_restored = 0
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
    def adapters(self) -> TensorParallelAdapters | None:
        return self._adapters

    @property
    def captured(self) -> list[tuple[int, StepForm]]:
        """See `GpuRuntime.captured`; the same on every rank."""
        return self._own.captured

    def warm(self, *rows: int, form: StepForm = FREE) -> None:
        """See `GpuRuntime.warm`."""
        with self._blaming():
            self._processes.tell(Warm(rows, form))
            self._own.warm(*rows, form=form)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """See `Runtime.submit`. What has arrived here the scheduler takes to be there; the others
        wait for their part of it."""
        told = plan
        if plan.awaits < self._last_restored:
            told = msgspec.structs.replace(plan, awaits=self._last_restored)
        with self._blaming():
            if self._adapters is not None:
                self._adapters.tell_drops()
            self._processes.tell(Step(told, masks is not None))
            self._own.submit(plan, masks)

    def collect(self) -> StepResult:
        """See `Runtime.collect`."""
        with self._blaming():
            self._processes.tell(Collect())
            result = self._own.collect()
        self._last_restored = result.last_restored
        return result

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Both in one."""
        self.submit(plan, masks)
        return self.collect()

    def prepare(self) -> bool:
        """See `GpuRuntime.prepare`; every rank captures the same."""
        missing = self._own.missing_graph()
        if missing is None:
            return False
        size, form = missing
        self.warm(size, form=form)
        return True

    def close(self) -> None:
        """See `Runtime.close`. No process, socket or file of the ranks is left."""
        self._processes.hang_up()
        self._adapters = None
        self._own.close()
        leave(self._ranks)
        self._processes.close()

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """What fails here may fail because another rank has ended."""
        try:
            yield
        except (OSError, RuntimeError):
            self._processes.end_if_lost()
            raise


class _PackedSlices:
    """An adapter as rank 0 has packed its slice; the others keep theirs under `ticket`, until they
    install it or hear of its end, which `dropped` is told."""

    def __init__(self, own: PackedAdapter, ticket: int, dropped: Callable[[int], None]) -> None:
        self.own = own
        self.ticket = ticket
        self.end = weakref.finalize(self, dropped, ticket)
        self.end.atexit = False

    @property
    def size_bytes(self) -> int:
        """On each device."""
        return self.own.size_bytes


class TensorParallelAdapters:
    """`RuntimeAdapters` of all ranks. What is packed is installed once, or dropped. `pack` is for
    any thread, the others are the runtime's own."""

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

    def pack(self, adapter: Adapter) -> _PackedSlices:
        """See `RuntimeAdapters`. Raises AdapterRefused where a rank cannot pack its slice; then no
        rank has any of it."""
        with self._packing:
            ticket = next(self._tickets)
            try:
                return self._pack(adapter, ticket)
            except OSError:
                self._processes.end_if_lost()
                raise

    def install(self, slot: int, packed: _PackedSlices) -> None:
        """See `RuntimeAdapters`."""
        packed.end.detach()
        self._processes.tell(Install(slot, packed.ticket))
        self._own.install(slot, packed.own)

    def clear(self, slot: int) -> None:
        """See `RuntimeAdapters`."""
        self._processes.tell(Clear(slot))
        self._own.clear(slot)

    def tell_drops(self) -> None:
        """Let the other ranks forget what nobody will install."""
        while not self._dropped.empty():
            self._processes.tell(Drop(self._dropped.get()))

    def _pack(self, adapter: Adapter, ticket: int) -> _PackedSlices:
        ranks = self._processes.ranks
        for rank in ranks:
            send_adapter(rank.adapters, ticket, self._slice(adapter, rank.number))
        try:
            own = self._own.pack(self._slice(adapter, 0))
        except Exception:
            self._dropped.put(ticket)
            raise
        finally:  # whatever happens here, each of them answers
            errors = [_packing_error(rank, ticket) for rank in ranks]
        if any(errors):
            self._dropped.put(ticket)
            raise AdapterRefused("lora_load_task_failed", "; ".join(filter(None, errors)))
        return _PackedSlices(own, ticket, self._dropped.put)

    def _slice(self, adapter: Adapter, rank: int) -> Adapter:
        return shard_adapter(adapter, self.spec, rank, 1 + len(self._processes.ranks))


def _packing_error(rank: RankProcess, ticket: int) -> str:
    """Why a rank has not packed its slice, "" where it has."""
    answer = rank.adapters.receive()
    if answer is None:
        raise ConnectionError(f"rank {rank.number} is gone")
    assert answer.ticket == ticket
    return f"rank {rank.number}: {answer.error}" if answer.error else ""
