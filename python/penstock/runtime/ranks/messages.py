"""The messages between rank 0 and the other ranks: msgpack frames (msgspec, never pickle) over
socket pairs that the child processes inherit.

Each rank has two pairs: one for messages in the order of the steps and one for adapters, so that
packing does not delay steps. While a rank starts, it reports its status as lines of JSON on its
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
from penstock.models.hub.model_files import FilesKind
from penstock.runtime.gpu.cuda_graphs import StepForm
from penstock.runtime.gpu.memory import DeviceMemoryPlan
from penstock.runtime.gpu.sampler import SampledTokens
from penstock.scheduler.types import StepPlan

_LENGTH = struct.Struct("<I")
_T = TypeVar("_T")


class RankTask(msgspec.Struct, frozen=True):
    """The line of JSON that a rank reads from standard input.

    `model_id`, `kind`, `path`, `mmproj`: fields of `ModelFiles`.
    `rank`, `count`: number of this rank, and number of all ranks.
    `rendezvous`: the file through which the ranks connect.
    `steps`, `adapters`: file descriptors of the rank's sockets.
    """

    settings: EngineSettings
    model_id: str
    kind: FilesKind
    path: str
    rank: int
    count: int
    device: str
    rendezvous: str
    steps: int
    adapters: int
    mmproj: str | None = None


class RankStatus(msgspec.Struct, frozen=True):
    """A line of JSON that a rank writes to standard output.

    `event`: "started": the rank can use its device. "met": it is connected to all other ranks.
    "ready": it accepts steps. "failed": it ends.
    `text`: the reason of "failed".
    `free_bytes`: free memory of the device at "met".
    """

    event: Literal["started", "met", "ready", "failed"]
    text: str = ""
    free_bytes: int = 0


class LoadShard(msgspec.Struct, frozen=True, tag="place"):
    """Loads the rank's shard. `memory`: the memory plan."""

    memory: DeviceMemoryPlan


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """Captures graphs; see `GpuRuntime.warm`."""

    rows: tuple[int, ...]
    form: StepForm


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Submits a plan. `masked`: rank 0 has token masks for it. If the CPU of rank 0 samples the
    step, the next message is SampledOnCpu."""

    plan: StepPlan
    masked: bool


class SampledOnCpu(msgspec.Struct, frozen=True, tag="sampled"):
    """The tokens that the CPU of rank 0 sampled in the last submitted step."""

    tokens: SampledTokens


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """Collects the oldest step in flight."""


class Install(msgspec.Struct, frozen=True, tag="install"):
    """Installs the packed adapter with this `ticket` in the adapter slot `slot`."""

    slot: int
    ticket: int


class Clear(msgspec.Struct, frozen=True, tag="clear"):
    """Clears the adapter slot `slot`."""

    slot: int


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Discards the packed adapter with this `ticket`, which will not be installed. An unknown
    ticket is ignored."""

    ticket: int


class KeepMedia(msgspec.Struct, frozen=True, tag="keep_media"):
    """Announces an encoded item, whose tensors rank 0 broadcasts next.

    `rows`: number of its rows.
    `deep`: number of its tensors of DeepStack rows.
    """

    digest: bytes
    rows: int
    deep: int


class DropMedia(msgspec.Struct, frozen=True, tag="drop_media"):
    """Forgets an encoded item."""

    digest: bytes


ToRank = (
    LoadShard
    | Warm
    | Step
    | SampledOnCpu
    | Collect
    | Install
    | Clear
    | Drop
    | KeepMedia
    | DropMedia
)


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A float32 matrix in C order."""

    shape: tuple[int, int]
    data: memoryview


class PackAdapter(msgspec.Struct, frozen=True, tag="pack"):
    """Announces the shard of an adapter (see `Adapter`), to be packed. `layers`: number of
    PackLayer messages that follow. Once the shard is packed, the rank answers with PackAnswer."""

    ticket: int
    revision: str
    rank: int
    size_bytes: int
    layers: int


class PackLayer(msgspec.Struct, frozen=True, tag="layer"):
    """The LoRA factors a and b of one layer, by projection."""

    factors: dict[str, tuple[Array, Array]]


class PackAnswer(msgspec.Struct, frozen=True, tag="packed"):
    """The answer to PackAdapter. `error`: why the adapter could not be packed, an empty string if
    it was packed."""

    ticket: int
    error: str = ""


ToPacker = PackAdapter | PackLayer

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """Return the bytes to send for a message: its length and its encoding."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Channel(Generic[_T]):
    """One end of a socket pair. It receives messages of the types `kinds`. At any time, one thread
    may send and one may receive."""

    def __init__(self, end: socket.socket, kinds: Any) -> None:
        self._end = end
        self._incoming = end.makefile("rb", buffering=1 << 16)
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(kinds)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Raises OSError if the other end is closed."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        """Send a frame made by `frame`. The same frame can be sent to several ranks."""
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
        """Close the connection. The other end still receives the messages already sent, then
        None."""
        with contextlib.suppress(OSError):  # the other end is closed
            self._end.shutdown(socket.SHUT_RDWR)
        self._incoming.close()
        self._end.close()


def send_adapter(channel: Channel[PackAnswer], ticket: int, adapter: Adapter) -> None:
    """Send the shard of an adapter layer by layer, so that encoding a frame never holds the GIL for
    long."""
    head = PackAdapter(
        ticket, adapter.revision, adapter.rank, adapter.size_bytes, len(adapter.layers)
    )
    channel.send(head)
    for layer in adapter.layers:
        factors = {name: (_array(one.a), _array(one.b)) for name, one in layer.items()}
        channel.send(PackLayer(factors))


def receive_adapter(channel: Channel[ToPacker], head: PackAdapter) -> Adapter | None:
    """Receive the layers of the adapter that `head` announces, and return the adapter. Return None
    if the other end is closed."""
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
