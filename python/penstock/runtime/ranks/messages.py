"""Messages between rank 0 and the other ranks: msgpack frames (msgspec, never pickle) over pairs of
connected sockets that the child process inherits, so that they have no name.

Each rank has two of them: one for messages in the order of the steps, one for adapters, so that
packing does not delay steps. While it starts, a rank reports its status as lines of JSON on its
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
    """The line of JSON on a rank's standard input. `model_id`, `kind`, `path`: fields of
    `ModelFiles`. `rendezvous`: the file through which the ranks connect. `steps`, `adapters`: file
    descriptors of its sockets."""

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
    """A line of a rank's standard output. "started": it can use its device. "met": it is connected
    to all other ranks and has `free_bytes` left. "ready": it accepts steps. "failed": it ends for
    the reason in `text`."""

    event: Literal["started", "met", "ready", "failed"]
    text: str = ""
    free_bytes: int = 0


class LoadShard(msgspec.Struct, frozen=True, tag="place"):
    """Load the shard with these sizes."""

    memory: DeviceMemoryPlan


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """See `GpuRuntime.warm`."""

    rows: tuple[int, ...]
    form: StepForm


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Submit a plan. `masked`: rank 0 has token masks for it. If the CPU samples the step, for
    whatever reason, the next message is SampledOnCpu."""

    plan: StepPlan
    masked: bool


class SampledOnCpu(msgspec.Struct, frozen=True, tag="sampled"):
    """The tokens that rank 0's CPU sampled in the last submitted step."""

    """The tokens that rank 0's CPU sampled in the last submitted step."""
    tokens: SampledTokens


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """Collect the oldest step."""


class Install(msgspec.Struct, frozen=True, tag="install"):
    """Install the packed adapter of this ticket in an adapter slot."""

    slot: int
    ticket: int


class Clear(msgspec.Struct, frozen=True, tag="clear"):
    """Clear an adapter slot."""

    """Clear an adapter slot."""
    slot: int


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Discard the packed adapter of this ticket, which will not be installed. Unknown tickets are
    ignored."""

    ticket: int


ToRank = LoadShard | Warm | Step | SampledOnCpu | Collect | Install | Clear | Drop


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A float32 matrix in C order."""

    shape: tuple[int, int]
    data: memoryview


class PackAdapter(msgspec.Struct, frozen=True, tag="pack"):
    """The shard of an adapter (see `Adapter`). One PackLayer for each of its `layers` follows. The
    answer is a PackAnswer once it is packed."""

    ticket: int
    revision: str
    rank: int
    size_bytes: int
    layers: int


class PackLayer(msgspec.Struct, frozen=True, tag="layer"):
    """LoRA factors a and b by projection."""

    factors: dict[str, tuple[Array, Array]]


class PackAnswer(msgspec.Struct, frozen=True, tag="packed"):
    """The answer to PackAdapter. `error`: why the adapter could not be packed, "" if it was."""

    ticket: int
    error: str = ""


ToPacker = PackAdapter | PackLayer

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """Return the bytes to send for a message."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Channel(Generic[_T]):
    """One end of a pair of sockets, which receives messages of `kinds`. One thread may send and one
    receive at a time."""

    def __init__(self, end: socket.socket, kinds: Any) -> None:
        self._end = end
        self._incoming = end.makefile("rb", buffering=1 << 16)
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(kinds)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Raises OSError if the other end is closed."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        """Send bytes made by `frame`, which can be sent to several ranks."""
        self._end.sendall(data)

    def receive(self) -> _T | None:
        """Wait for the next message. Return None if the other end is closed."""
        try:
            head = self._incoming.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack(head)
            body = self._incoming.read(size)
        except (ConnectionError, ValueError):  # ValueError: closed here by another thread
            return None
        return self._decoder.decode(body) if len(body) == size else None

    def close(self) -> None:
        """Close the connection. Both ends receive messages already sent, then None."""
        with contextlib.suppress(OSError):  # the other end is closed
            self._end.shutdown(socket.SHUT_RDWR)
        self._incoming.close()
        self._end.close()


def send_adapter(channel: Channel[PackAnswer], ticket: int, adapter: Adapter) -> None:
    """Send an adapter's shard layer by layer, so that no frame holds the GIL for long."""
    head = PackAdapter(
        ticket, adapter.revision, adapter.rank, adapter.size_bytes, len(adapter.layers)
    )
    channel.send(head)
    for layer in adapter.layers:
        factors = {name: (_array(one.a), _array(one.b)) for name, one in layer.items()}
        channel.send(PackLayer(factors))


def receive_adapter(channel: Channel[ToPacker], head: PackAdapter) -> Adapter | None:
    """Receive the layers of an adapter after `head`. Return None if the other end was closed."""
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
