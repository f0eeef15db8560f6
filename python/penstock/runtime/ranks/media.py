"""Media of a tensor-parallel model: rank 0 encodes an item, then copies it to the other ranks.

The towers are not divided. Encoded items are small: a rank needs the same rows as the others,
because each holds the whole embedding.
"""

from __future__ import annotations

from typing import Any

from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import EncodedMedia, MediaMode
from penstock.runtime.gpu.media import DeviceMedia
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import Broadcast
from penstock.runtime.media import Encoding, RuntimeMedia
from penstock.runtime.ranks.messages import DropMedia, KeepMedia
from penstock.runtime.ranks.process_group import RankProcessGroup, checking_ranks


class TensorParallelMedia:
    """The `RuntimeMedia` of rank 0.

    `own`: the runtime of rank 0's shard, which has the towers.
    `broadcast`: copies a tensor to the other ranks.
    """

    def __init__(self, own: GpuRuntime, processes: RankProcessGroup, broadcast: Broadcast) -> None:
        self._own = own
        self._processes = processes
        self._broadcast = broadcast

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return self._towers.kinds

    @property
    def modes(self) -> tuple[MediaMode, ...]:
        """See MediaSpec."""
        return self._towers.modes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on each device."""
        return self._towers.row_bytes

    def encode(self, media: PreparedMedia, budget: PieceBudget) -> Encoding:
        """Encode an item on rank 0; see `RuntimeMedia.encode`."""
        return self._towers.encode(media, budget)

    def keep(self, digest: bytes, encoded: EncodedMedia[Any]) -> None:
        """Make an encoded item available to the steps of every rank; see `RuntimeMedia.keep`."""
        with checking_ranks(self._processes):
            self._processes.send_all(KeepMedia(digest, len(encoded.rows), len(encoded.deep)))
            _broadcast_item(encoded, self._own, self._broadcast)
        self._towers.keep(digest, encoded)

    def drop(self, digest: bytes) -> None:
        """Forget an encoded item on every rank; see `RuntimeMedia.drop`."""
        with checking_ranks(self._processes):
            self._processes.send_all(DropMedia(digest))
        self._towers.drop(digest)

    @property
    def _towers(self) -> RuntimeMedia:
        assert self._own.media is not None
        return self._own.media


class ReceivedMedia:
    """The encoded items of a rank other than 0. `broadcast`: receives a tensor of rank 0."""

    def __init__(self, runtime: GpuRuntime, broadcast: Broadcast) -> None:
        self._runtime = runtime
        self._broadcast = broadcast

    def keep(self, message: KeepMedia) -> None:
        """Receive the item that `message` announces."""
        media = self._device_media
        with self._runtime.launching():
            item = media.empty_item(message.rows, message.deep)
        _broadcast_item(item, self._runtime, self._broadcast)
        media.encoded[message.digest] = item

    def drop(self, digest: bytes) -> None:
        """Forget an item. Rows that were admitted before go on with it."""
        del self._device_media.encoded[digest]

    @property
    def _device_media(self) -> DeviceMedia:
        assert self._runtime.device_media is not None
        return self._runtime.device_media


def _broadcast_item(item: EncodedMedia[Any], runtime: GpuRuntime, broadcast: Broadcast) -> None:
    """Copy the tensors of an item from rank 0, on the stream of steps."""
    with runtime.launching():
        for tensor in (item.rows, *item.deep):
            broadcast(tensor)
