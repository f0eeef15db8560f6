"""Tensor-parallel runtimes whose other rank is a thread of this process, over reference ops."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from gpu_runtime_on_cpu import FREE_BYTES, gpu_ops_on_cpu

from penstock.config import EngineSettings
from penstock.models.loader.model_loader import LoadedModel
from penstock.models.loader.tensor_parallel import shard_model
from penstock.runtime.gpu.load import build_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import FollowerSampler, LeaderSampler, MakeSampler
from penstock.runtime.ranks.follower import Follower, receive_tokens
from penstock.runtime.ranks.messages import Channel, PackAnswer, SampledOnCpu, ToPacker, ToRank
from penstock.runtime.ranks.runtime import TensorParallelRuntime
from tests.support.thread_ranks import Meeting, ThreadRanks

RANKS = 2


@dataclass
class InThread:
    """The only other rank, in a thread of this process; replaces `RankProcessGroup`."""

    steps: Channel[Any]
    adapters: Channel[PackAnswer]
    number: int = 1
    ranks: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [self]

    def send_all(self, message: msgspec.Struct) -> None:
        self.steps.send(message)

    def end_if_rank_died(self) -> None:
        raise AssertionError("it is there")

    def disconnect(self) -> None:
        self.steps.close()
        self.adapters.close()

    def close(self) -> None:
        self.disconnect()


@contextmanager
def on_two_threads(
    model: LoadedModel, settings: EngineSettings
) -> Iterator[tuple[TensorParallelRuntime, GpuRuntime]]:
    """Yield the runtime of `model` divided among two ranks, and the runtime of rank 1, whose steps
    a thread executes."""
    meeting = Meeting(RANKS)
    ranks = [ThreadRanks(number, meeting) for number in range(RANKS)]
    (steps, own_steps), (adapters, own_adapters) = socket.socketpair(), socket.socketpair()
    received: Channel[ToRank] = Channel(own_steps, ToRank)
    processes = InThread(Channel(steps, Any), Channel(adapters, PackAnswer))
    samplers: list[MakeSampler] = [
        partial(
            LeaderSampler,
            ranks[0].broadcast,
            lambda sampled: processes.send_all(SampledOnCpu(sampled)),
        ),
        partial(FollowerSampler, ranks[1].broadcast, partial(receive_tokens, received)),
    ]
    own, other = (
        _shard_runtime(model, settings, rank, sampler)
        for rank, sampler in zip(ranks, samplers, strict=True)
    )
    packer: Channel[ToPacker] = Channel(own_adapters, ToPacker)
    follower = Follower(other, received, packer, ranks[1].broadcast)

    def follow() -> None:
        try:
            follower.run()
        finally:
            meeting.leave()  # rank 0 would wait for this thread

    thread = threading.Thread(target=follow)
    thread.start()
    leading = TensorParallelRuntime(own, processes, ranks[0], model.spec)  # type: ignore[arg-type]
    try:
        yield leading, other
    finally:
        leading.close()
        thread.join()
        follower.close()


def _shard_runtime(
    model: LoadedModel, settings: EngineSettings, rank: ThreadRanks, sampler: MakeSampler
) -> GpuRuntime:
    shard = shard_model(model, rank.rank, rank.count)
    memory = plan_device_memory(shard.spec, 1 << 20, settings, FREE_BYTES)
    ops = gpu_ops_on_cpu(settings)
    return build_runtime(shard, memory, settings, ops, communicator=rank, sampler=sampler)
