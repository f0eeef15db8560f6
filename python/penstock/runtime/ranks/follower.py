"""A rank other than 0: executes the messages of rank 0 until rank 0 disconnects."""

from __future__ import annotations

import logging
import threading

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ServiceError
from penstock.kernels.lora_slots import PackedAdapter
from penstock.runtime.gpu.adapters import DeviceAdapters
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import Broadcast, SampledTokens
from penstock.runtime.ranks.media import ReceivedMedia
from penstock.runtime.ranks.messages import (
    Channel,
    Clear,
    Collect,
    Drop,
    DropMedia,
    Install,
    KeepMedia,
    LoadShard,
    PackAdapter,
    PackAnswer,
    SampledOnCpu,
    Step,
    ToPacker,
    ToRank,
    Warm,
    receive_adapter,
)

log = logging.getLogger(__name__)


class LeaderGone(Exception):
    """Raised if rank 0 disconnects in the middle of a step."""


class _LeaderMasks:
    """A placeholder for the token masks of a step, which only rank 0 has."""

    def wait(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
        raise AssertionError("only rank 0 samples")


LEADER_MASKS = _LeaderMasks()


def receive_tokens(steps: Channel[ToRank]) -> SampledTokens:
    """Wait for the tokens that the CPU of rank 0 sampled in the last step, and return them. Raises
    LeaderGone."""
    message = steps.receive()
    if message is None:
        raise LeaderGone
    assert isinstance(message, SampledOnCpu)
    return message.tokens


class Follower:
    """Executes the messages of rank 0 on the runtime of this rank's shard.

    `runtime`: its sampler also reads from `steps`.
    `steps`: receives messages in the order of the steps.
    `adapters`: receives adapters, which a separate thread packs.
    `broadcast`: receives a tensor of rank 0.
    """

    def __init__(
        self,
        runtime: GpuRuntime,
        steps: Channel[ToRank],
        adapters: Channel[ToPacker],
        broadcast: Broadcast,
    ) -> None:
        self._runtime = runtime
        self._media = ReceivedMedia(runtime, broadcast)
        self._steps = steps
        self._incoming = adapters
        self._packed: dict[int, PackedAdapter] = {}
        self._packer = threading.Thread(target=self._pack_all, name="penstock-adapters")
        self._packer.daemon = True
        self._packer.start()

    def run(self) -> None:
        """Execute messages until rank 0 disconnects."""
        try:
            while (message := self._steps.receive()) is not None:
                self._execute(message)
        except LeaderGone:
            return

    def close(self) -> None:
        """Release connections and device memory."""
        self._steps.close()
        self._incoming.close()
        self._packer.join()
        self._runtime.close()

    def _execute(self, message: ToRank) -> None:
        runtime = self._runtime
        match message:
            case Step(plan, masked):
                runtime.submit(plan, LEADER_MASKS if masked else None)
            case Collect():
                runtime.collect()
            case Warm(rows, form):
                runtime.warm(*rows, form=form)
            case Install(slot, ticket):
                self._adapters.install(slot, self._packed.pop(ticket))
            case Clear(slot):
                self._adapters.clear(slot)
            case Drop(ticket):
                self._packed.pop(ticket, None)
            case KeepMedia():
                self._media.keep(message)
            case DropMedia(digest):
                self._media.drop(digest)
            case LoadShard() | SampledOnCpu():
                raise AssertionError(f"unexpected message {message}")

    @property
    def _adapters(self) -> DeviceAdapters:
        assert self._runtime.adapters is not None
        return self._runtime.adapters

    def _pack_all(self) -> None:
        while (message := self._incoming.receive()) is not None:
            assert isinstance(message, PackAdapter)
            try:
                error = self._pack(message)
                self._incoming.send(PackAnswer(message.ticket, error))
            except OSError:
                return

    def _pack(self, head: PackAdapter) -> str:
        """Receive and pack an adapter, whose first message is `head`. Return the reason if it
        cannot be packed, else an empty string."""
        adapter = receive_adapter(self._incoming, head)
        if adapter is None:
            raise ConnectionError
        try:
            self._packed[head.ticket] = self._adapters.pack(adapter)
            return ""
        except ServiceError as error:
            return error.message
        except Exception:  # the outermost loop of this thread: rank 0 refuses the load
            log.exception("adapter %s cannot be packed", head.revision)
            return "the shard of that device cannot be packed"
