"""What rank 0 and the other ranks of a model say to each other: frames of msgpack (msgspec, never
pickle) over pairs of connected sockets that the child inherits, so that they have no name.

Each rank has two of them: one for what goes in the order of the steps, one for adapters on their
way to its memory, which hold up no step. How a rank starts, it says in lines of JSON on its
standard output.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np

from penstock.adapters.adapter import Adapter, Factors
from penstock.config import EngineSettings
from penstock.runtime.gpu.cuda_graphs import StepForm
from penstock.runtime.gpu.memory import DeviceMemoryPlan
from penstock.runtime.gpu.sampler import SampledTokens
from penstock.scheduler.types import StepPlan

_LENGTH = struct.Struct("<I")
_T = TypeVar("_T")


class RankTask(msgspec.Struct, frozen=True):
    """The line of JSON that a rank gets on its standard input. `model_id`, `kind`, `path`: of the
    `ModelFiles`. `rendezvous`: the file by which the ranks meet. `steps`, `adapters`: descriptors
    of its sockets."""

    settings: EngineSettings
    model_id: str
    kind: Literal["gguf", "folder"]
    path: str
    rank: int
    count: int
    device: str
    rendezvous: str
    steps: int
    adapters: int


class RankStatus(msgspec.Struct, frozen=True):
    """A line of a rank's standard output. It has "started", and can use its device; "met" all other
    ranks, and `free_bytes` are left there; is "ready" for steps; or "failed", as `text` says."""

    event: Literal["started", "met", "ready", "failed"]
    text: str = ""
    free_bytes: int = 0


class LoadShard(msgspec.Struct, frozen=True, tag="place"):
    """Load the shard, with these sizes."""

    memory: DeviceMemoryPlan


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """See `GpuRuntime.warm`."""

    rows: tuple[int, ...]
    form: StepForm


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Submit a plan. `masked`: the host of rank 0 has masks for it. Where the host samples,
    whatever
    the reason, SampledOnHost is next."""

    plan: StepPlan
    masked: bool


class SampledOnHost(msgspec.Struct, frozen=True, tag="sampled"):
    tokens: SampledTokens


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """Collect the oldest step."""


class Install(msgspec.Struct, frozen=True, tag="install"):
    """The packed adapter of this ticket is what the slot holds from now on."""

    slot: int
    ticket: int


class Clear(msgspec.Struct, frozen=True, tag="clear"):
    slot: int


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Nobody will install the packed adapter of this ticket any more. Harmless for one that is not
    there."""

    ticket: int


ToRank = LoadShard | Warm | Step | SampledOnHost | Collect | Install | Clear | Drop


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A matrix of float32 in C order."""

    shape: tuple[int, int]
    data: memoryview


class PackAdapter(msgspec.Struct, frozen=True, tag="pack"):
    """A slice of an adapter follows, in one PackLayer for each of its `layers`; answered by a
    PackAnswer when it is packed. See `Adapter`."""

    ticket: int
    revision: str
    rank: int
    size_bytes: int
    layers: int


class PackLayer(msgspec.Struct, frozen=True, tag="layer"):
    """Projections and their a and b."""

    factors: dict[str, tuple[Array, Array]]


class PackAnswer(msgspec.Struct, frozen=True, tag="packed"):
    """`error`: why the adapter of this ticket could not be packed, "" where it was."""

    ticket: int
    error: str = ""


ToPacker = PackAdapter | PackLayer

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """The bytes to send for a message."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Channel(Generic[_T]):
    """One end of a pair of sockets, from which messages of `kinds` are received. One thread sends
    and one receives at a time."""

    def __init__(self, end: socket.socket, kinds: Any) -> None:
        self._end = end
        self._incoming = end.makefile("rb", buffering=1 << 16)
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(kinds)

    def send(self, message: msgspec.Struct) -> None:
        """Raises OSError where the other end is closed."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        """What `frame` gave, for several."""
        self._end.sendall(data)

    def receive(self) -> _T | None:
        """The next message; None where the other end is closed."""
        try:
            head = self._incoming.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack(head)
            body = self._incoming.read(size)
        except (ConnectionError, ValueError):  # ValueError: closed here, by another thread
            return None
        return self._decoder.decode(body) if len(body) == size else None

    def close(self) -> None:
        """The other end receives what was sent, then None; so does whoever receives here."""
        with contextlib.suppress(OSError):  # the other end is closed
            self._end.shutdown(socket.SHUT_RDWR)
        self._incoming.close()
        self._end.close()


def send_adapter(channel: Channel[PackAnswer], ticket: int, adapter: Adapter) -> None:
    """Send a slice of an adapter, layer by layer: no frame keeps the interpreter for long."""
    head = PackAdapter(
        ticket, adapter.revision, adapter.rank, adapter.size_bytes, len(adapter.layers)
    )
    channel.send(head)
    for layer in adapter.layers:
        factors = {name: (_array(one.a), _array(one.b)) for name, one in layer.items()}
        channel.send(PackLayer(factors))


def receive_adapter(channel: Channel[ToPacker], head: PackAdapter) -> Adapter | None:
    """The adapter whose layers come after `head`; None where the other end was closed."""
    layers = []
    for _ in range(head.layers):
        layer = channel.receive()
        if layer is None:
            return None
        assert isinstance(layer, PackLayer)
        layers.append(
            {name: Factors(_matrix(a), _matrix(b)) for name, (a, b) in layer.factors.items()}
        )
    return Adapter(head.revision, head.rank, head.size_bytes, tuple(layers))


def _array(matrix: np.ndarray[Any, np.dtype[np.float32]]) -> Array:
    rows, columns = matrix.shape
    return Array((rows, columns), np.ascontiguousarray(matrix, np.float32).data.cast("B"))


def _matrix(array: Array) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(array.data, np.float32).reshape(array.shape)
