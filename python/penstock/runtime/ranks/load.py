"""Starts a tensor-parallel runtime on several devices: rank 0 and the other ranks.

The ranks connect first, so that the memory for their connections is already allocated when memory
is planned. Then rank 0 plans the memory of all ranks by the smallest free memory, and each rank
loads its shard.
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
from penstock.runtime.gpu.load import build_runtime, open_device, plan_sizes
from penstock.runtime.gpu.memory import DeviceMemoryPlan
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import FollowerSampler, LeaderSampler
from penstock.runtime.own_adapters import with_own_adapters
from penstock.runtime.ranks.follower import receive_tokens
from penstock.runtime.ranks.messages import (
    Channel,
    LoadShard,
    RankStatus,
    RankTask,
    SampledOnCpu,
    ToRank,
)
from penstock.runtime.ranks.process_group import RankProcessGroup, end_process
from penstock.runtime.ranks.runtime import TensorParallelRuntime, leave
from penstock.runtime.weight_quantization import weight_form

log = logging.getLogger(__name__)


def start_tensor_parallel_runtime(
    files: ModelFiles,
    settings: EngineSettings,
    devices: tuple[str, ...],
    progress: Progress | None = None,
    on_rank_lost: Callable[[], None] = end_process,
) -> TensorParallelRuntime:
    """Return the runtime of a model that is divided among `devices`.

    `devices`: one per rank; the first belongs to this process. "cpu" for every device uses the
    reference ops (tests).
    `on_rank_lost`: see `RankProcessGroup`.

    Raises ModelError that names the rank that cannot start.
    """
    assert len(devices) == settings.tensor_parallel_size > 1
    if torch.distributed.is_initialized():
        raise ModelError(
            "tensor_parallel_size: this process already runs a model on several devices; it can"
            " have one"
        )
    form = weight_form(settings)
    model = load_model(files, settings.dtype, float8="float8", form=form)
    settings = with_own_adapters(settings, model.media_spec)
    shard = shard_model(model, 0, len(devices))
    opened = _open(settings, devices[0])
    with ExitStack() as undo:
        processes = RankProcessGroup(files, settings, devices, on_rank_lost)
        undo.callback(processes.close)
        processes.wait_for("started", processes.numbers)
        communicator = _connect_watched(processes, devices, settings)
        undo.callback(leave, communicator)
        undo.callback(processes.disconnect)
        memory = _plan(shard, settings, opened, processes)
        processes.send_all(LoadShard(memory))
        sampler = partial(
            LeaderSampler,
            communicator.broadcast,
            lambda sampled: processes.send_all(SampledOnCpu(sampled)),
        )
        own = build_runtime(
            shard,
            memory,
            settings,
            opened.ops,
            progress,
            communicator=communicator,
            sampler=sampler,
        )
        processes.wait_for("ready", processes.numbers)
        processes.serve()
        runtime = TensorParallelRuntime(own, processes, communicator, model.spec)
        runtime.warm(1)
        undo.pop_all()
    log.info("%s", opened.report())
    return runtime


def start_follower(
    task: RankTask, steps: Channel[ToRank], send_status: Callable[[RankStatus], None]
) -> tuple[GpuRuntime, TorchCommunicator]:
    """Return the runtime of a rank other than 0. `send_status`: called with the progress of the
    start. Raises ModelError if this rank cannot start."""
    opened = _open(task.settings, task.device)
    mmproj = None if task.mmproj is None else Path(task.mmproj)
    files = ModelFiles(task.model_id, task.kind, Path(task.path), mmproj)
    form = weight_form(task.settings)
    model = load_model(files, task.settings.dtype, float8="float8", form=form)
    shard = shard_model(model, task.rank, task.count)
    send_status(RankStatus("started"))
    rendezvous = Path(task.rendezvous)
    communicator = _connect(task.rank, task.count, rendezvous, task.device, task.settings)
    send_status(RankStatus("met", free_bytes=opened.free_bytes()))
    order = steps.receive()
    if order is None:
        raise ModelError("rank 0 disconnected while this rank started")
    assert isinstance(order, LoadShard)

    sampler = partial(FollowerSampler, communicator.broadcast, partial(receive_tokens, steps))
    runtime = build_runtime(
        shard,
        order.memory,
        task.settings,
        opened.ops,
        communicator=communicator,
        sampler=sampler,
    )
    return runtime, communicator


class Opened(Protocol):
    """A device that can be used; see `gpu.load.OpenDevice`."""

    @property
    def ops(self) -> TorchOps: ...

    def free_bytes(self) -> int: ...

    def report(self) -> str: ...


class _CpuDevice:
    """The CPU instead of a GPU, with the reference ops (tests)."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # the ranks' threads would compete for the cores
        self.ops: TorchOps = ReferenceOps()

    def free_bytes(self) -> int:
        return available_bytes() or 0

    def report(self) -> str:
        return "tensor parallelism on a CPU, with the reference kernels"


def _open(settings: EngineSettings, device: str) -> Opened:
    return _CpuDevice() if device == "cpu" else open_device(settings, device)


def _plan(
    shard: LoadedModel, settings: EngineSettings, opened: Opened, processes: RankProcessGroup
) -> DeviceMemoryPlan:
    """Return one memory plan for all ranks, based on the smallest free memory. Raises ModelError if
    the model does not fit."""
    met = processes.wait_for("met", processes.numbers)
    free_bytes = min(opened.free_bytes(), *(status.free_bytes for status in met))
    return plan_sizes(shard, settings, opened.ops, free_bytes)


def _connect(
    rank: int, count: int, rendezvous: Path, device: str, settings: EngineSettings
) -> TorchCommunicator:
    """Connect to the other ranks and return the communicator. Each kind of collective runs once, so
    that its connections and memory are allocated. Raises ModelError if a connection fails."""
    try:
        backend: Backend = "gloo"
        if device != "cpu":
            backend = "nccl"
            torch.cuda.set_device(device)  # for this thread
        sums: Sums = "ordered" if settings.deterministic else "fastest"
        communicator = TorchCommunicator(rank, count, rendezvous, backend, device, sums)
        one = torch.ones(1, 1, device=device)
        communicator.all_gather(communicator.all_reduce(one), count)
        communicator.broadcast(one.int())
        if device != "cpu":
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise ModelError(f"the ranks cannot connect: {error}") from None
    return communicator


def _connect_watched(
    processes: RankProcessGroup, devices: tuple[str, ...], settings: EngineSettings
) -> TorchCommunicator:
    """Connect rank 0 to the other ranks and return the communicator. A thread connects, so that the
    failure of another rank ends the wait. Raises ModelError with the reason."""
    found: list[TorchCommunicator] = []

    def connect() -> None:
        try:
            found.append(_connect(0, len(devices), processes.rendezvous, devices[0], settings))
            processes.report(0, RankStatus("met"))
        except ModelError as error:
            processes.report(0, RankStatus("failed", str(error)))

    threading.Thread(target=connect, name="penstock-meeting", daemon=True).start()
    processes.wait_for("met", range(len(devices)))
    return found[0]
