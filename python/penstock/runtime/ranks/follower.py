"""A rank that is not the first: it does what rank 0 tells, until that hangs up."""

from __future__ import annotations

import logging
import threading

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ServiceError
from penstock.kernels.lora_slots import PackedAdapter
from penstock.runtime.gpu.adapters import DeviceAdapters
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import SampledTokens
from penstock.runtime.ranks.messages import (
    Channel,
    Clear,
    Collect,
    Drop,
    Install,
    LoadShard,
    PackAdapter,
    PackAnswer,
    SampledOnHost,
    Step,
    ToPacker,
    ToRank,
    Warm,
    receive_adapter,
)

log = logging.getLogger(__name__)


class LeaderGone(Exception):
    """Rank 0 has hung up in the middle of a step."""


class _MasksElsewhere:
    """`Masks` that the host of rank 0 has."""

    def wait(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
        raise AssertionError("rank 0 alone samples")


MASKS_ELSEWHERE = _MasksElsewhere()


def hear_tokens(steps: Channel[ToRank]) -> SampledTokens:
    """What the host of rank 0 drew in the step that was submitted last. Raises LeaderGone."""
    message = steps.receive()
    if message is None:
        raise LeaderGone
    assert isinstance(message, SampledOnHost)
    return message.tokens


class Follower:
    """`runtime`: of this rank's shard, whose sampler reads from `steps`. Adapters are packed by a
    thread
    of their own, as they come through `adapters`."""

    def __init__(
        self, runtime: GpuRuntime, steps: Channel[ToRank], adapters: Channel[ToPacker]
    ) -> None:
        self._runtime = runtime
        self._steps = steps
        self._incoming = adapters
        self._packed: dict[int, PackedAdapter] = {}
        self._packer = threading.Thread(target=self._pack_all, name="penstock-adapters")
        self._packer.daemon = True
        self._packer.start()

    def run(self) -> None:
        """Return when rank 0 has hung up."""
        try:
            while (message := self._steps.receive()) is not None:
                self._obey(message)
        except LeaderGone:
            return

    def close(self) -> None:
        """Give the memory of the device back."""
        self._steps.close()
        self._incoming.close()
        self._packer.join()
        self._runtime.close()

    def _obey(self, message: ToRank) -> None:
        runtime = self._runtime
        match message:
            case Step(plan, masked):
                runtime.submit(plan, MASKS_ELSEWHERE if masked else None)
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
            case LoadShard() | SampledOnHost():
                raise AssertionError(f"{message} out of its turn")

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
        """Keep an adapter that comes now, packed; or why it cannot be."""
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
            return "the slice of that device cannot be packed"
