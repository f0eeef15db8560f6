"""From a model on disk to a runtime over several devices: how rank 0 and the others start.

They meet first, so that what they take for their connections is taken; then rank 0 plans the memory
of all, by the least that is left on any, and each loads its shard.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed

from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes
from penstock.config import EngineSettings
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.torch_communicator import Backend, Sums, TorchCommunicator
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.decoder import Progress
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.models.loader.tensor_parallel import shard_model
from penstock.runtime.gpu.load import open_device, place, plan_sizes
from penstock.runtime.gpu.memory import DeviceMemoryPlan
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import FollowerSampler, LeaderSampler
from penstock.runtime.ranks.follower import hear_tokens
from penstock.runtime.ranks.messages import (
    Channel,
    LoadShard,
    RankStatus,
    RankTask,
    SampledOnHost,
    ToRank,
)
from penstock.runtime.ranks.process_group import RankProcessGroup, end_process
from penstock.runtime.ranks.runtime import TensorParallelRuntime, leave
from penstock.runtime.weight_quantization import integer_bits

log = logging.getLogger(__name__)


def start_ranked_runtime(
    files: ModelFiles,
    settings: EngineSettings,
    devices: tuple[str, ...],
    progress: Progress | None = None,
    lost: Callable[[], None] = end_process,
) -> TensorParallelRuntime:
    """The runtime of a model that is divided among `devices`, of which this process has the first;
    "cpu" for each rehearses it over the reference bodies. `lost`: see `RankProcessGroup`. Raises
    ModelError with the rank that cannot serve."""
    assert len(devices) == settings.tensor_parallel > 1
    if torch.distributed.is_initialized():
        raise ModelError(
            "tensor_parallel: this process has a model already that is divided among devices"
        )
    bits = integer_bits(settings)
    model = load_model(files, settings.dtype, float8="float8", bits=bits)
    shard = shard_model(model, 0, len(devices))
    opened = _open(settings, devices[0])
    with ExitStack() as undo:
        processes = RankProcessGroup(files, settings, devices, lost)
        undo.callback(processes.close)
        processes.wait_for("started", processes.numbers)
        ranks = _meet_watched(processes, devices, settings)
        undo.callback(leave, ranks)
        undo.callback(processes.hang_up)
        memory = _plan(shard, settings, opened, processes)
        processes.tell(LoadShard(memory))
        sampler = partial(
            LeaderSampler, ranks.broadcast, lambda sampled: processes.tell(SampledOnHost(sampled))
        )
        own = place(shard, memory, settings, opened.ops, progress, ranks=ranks, sampler=sampler)
        processes.wait_for("ready", processes.numbers)
        processes.serve()
        runtime = TensorParallelRuntime(own, processes, ranks, model.spec)
        runtime.warm(1)
        undo.pop_all()
    log.info("%s", opened.report())
    return runtime


def start_follower(
    task: RankTask, steps: Channel[ToRank], say: Callable[[RankStatus], None]
) -> tuple[GpuRuntime, TorchCommunicator]:
    """The runtime of a rank that is not the first, which says how far it is. Raises ModelError."""
    opened = _open(task.settings, task.device)
    files = ModelFiles(task.model_id, task.kind, Path(task.path))
    bits = integer_bits(task.settings)
    model = load_model(files, task.settings.dtype, float8="float8", bits=bits)
    shard = shard_model(model, task.rank, task.count)
    say(RankStatus("started"))
    meeting = Path(task.rendezvous)
    ranks = _meet(task.rank, task.count, meeting, task.device, task.settings)
    say(RankStatus("met", free_bytes=opened.free_bytes()))
    order = steps.receive()
    if order is None:
        raise ModelError("rank 0 is gone")
    assert isinstance(order, LoadShard)

    sampler = partial(FollowerSampler, ranks.broadcast, partial(hear_tokens, steps))
    return place(
        shard, order.memory, task.settings, opened.ops, ranks=ranks, sampler=sampler
    ), ranks


class Opened(Protocol):
    """See `gpu.load.OpenDevice`."""

    @property
    def ops(self) -> TorchOps: ...

    def free_bytes(self) -> int: ...

    def report(self) -> str: ...


class _Rehearsal:
    """CPU tensors in the place of a device, and the reference bodies."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # those of several ranks only get into each other's way
        self.ops: TorchOps = ReferenceOps()

    def free_bytes(self) -> int:
        return available_bytes() or 0

    def report(self) -> str:
        return "rehearsed on a CPU"


def _open(settings: EngineSettings, device: str) -> Opened:
    return _Rehearsal() if device == "cpu" else open_device(settings, device)


def _plan(
    shard: LoadedModel, settings: EngineSettings, opened: Opened, processes: RankProcessGroup
) -> DeviceMemoryPlan:
    """One plan for all ranks, of which each can keep to it. Raises ModelError."""
    met = processes.wait_for("met", processes.numbers)
    free_bytes = min(opened.free_bytes(), *(status.free_bytes for status in met))
    return plan_sizes(shard, settings, opened.ops, free_bytes)


def _meet(
    rank: int, count: int, rendezvous: Path, device: str, settings: EngineSettings
) -> TorchCommunicator:
    """The other ranks. Each kind of call is made once, so that its connections are there and their
    memory is taken. Raises ModelError."""
    try:
        backend: Backend = "gloo"
        if device != "cpu":
            backend = "nccl"
            torch.cuda.set_device(device)  # this thread's
        sums: Sums = "ordered" if settings.deterministic else "fastest"
        ranks = TorchCommunicator(rank, count, rendezvous, backend, device, sums)
        one = torch.ones(1, 1, device=device)
        ranks.all_gather(ranks.all_reduce(one), count)
        ranks.broadcast(one.int())
        if device != "cpu":
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise ModelError(f"the ranks cannot meet: {error}") from None
    return ranks


def _meet_watched(
    processes: RankProcessGroup, devices: tuple[str, ...], settings: EngineSettings
) -> TorchCommunicator:
    """As `_meet`, of rank 0, in a thread that waits for the others for as long as they are there.
    Raises ModelError with what became of the one that is not."""
    found: list[TorchCommunicator] = []

    def meet() -> None:
        try:
            found.append(_meet(0, len(devices), processes.rendezvous, devices[0], settings))
            processes.hear(0, RankStatus("met"))
        except ModelError as error:
            processes.hear(0, RankStatus("failed", str(error)))

    threading.Thread(target=meet, name="penstock-meeting", daemon=True).start()
    processes.wait_for("met", range(len(devices)))
    return found[0]
