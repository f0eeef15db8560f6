"""The frames between the server and a container's init, as csrc/sandbox/wire.h defines them."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

HEADER = struct.Struct("<HHI")
MAX_PAYLOAD = 60 * 1024
MAX_FRAME = HEADER.size + MAX_PAYLOAD


class Kind(enum.IntEnum):
    """The kind of a frame."""

    SPEC = 1
    SPAWN = 2
    SIGNAL = 3
    WRITE_BEGIN = 4
    WRITE_DATA = 5
    WRITE_END = 6
    READ = 7
    LIST = 8
    KILL_OTHERS = 9
    STATS = 10
    WRITE_ABORT = 11
    READY = 64
    FAILED = 65
    SPAWNED = 66
    EXITED = 67
    DONE = 68
    FILE_ERROR = 69
    FILE_SIZE = 70
    FILE_DATA = 71
    ENTRIES = 72
    LISTED = 73
    USAGE = 74


class FrameError(Exception):
    """A frame that does not follow the protocol."""


class Frame:
    """One frame: its kind, the number of its request, and its payload."""

    __slots__ = ("kind", "payload", "request")

    def __init__(self, kind: Kind, request: int, payload: bytes) -> None:
        self.kind = kind
        self.request = request
        self.payload = payload

    @classmethod
    def decode(cls, packet: bytes) -> Frame:
        """Return the frame in a packet. Raises FrameError."""
        if not HEADER.size <= len(packet) <= MAX_FRAME:
            raise FrameError("the packet is too short or too long")
        kind, reserved, request = HEADER.unpack_from(packet)
        if reserved != 0 or kind not in _FROM_INIT:
            raise FrameError(f"unknown frame kind {kind}")
        return cls(Kind(kind), request, packet[HEADER.size :])


_FROM_INIT = frozenset(kind.value for kind in Kind if kind >= Kind.READY)


class Payload:
    """Builds a payload field by field."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u32(self, value: int) -> Payload:
        """Append a 32-bit number."""
        self._parts.append(struct.pack("<I", value))
        return self

    def u64(self, value: int) -> Payload:
        """Append a 64-bit number."""
        self._parts.append(struct.pack("<Q", value))
        return self

    def text(self, value: str) -> Payload:
        """Append a text."""
        data = value.encode()
        self._parts.append(struct.pack("<I", len(data)) + data)
        return self

    def texts(self, values: Iterable[str]) -> Payload:
        """Append a list of texts."""
        listed = list(values)
        self.u32(len(listed))
        for value in listed:
            self.text(value)
        return self

    def frame(self, kind: Kind, request: int) -> bytes:
        """Return the packet of a frame with this payload. Raises ValueError if it is too long."""
        payload = b"".join(self._parts)
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"arguments take {len(payload)} bytes, at most {MAX_PAYLOAD} fit")
        return HEADER.pack(kind, 0, request) + payload


class Fields:
    """Reads a payload field by field. Raises FrameError past its end."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def u32(self) -> int:
        """Return the next 32-bit number."""
        return int.from_bytes(self._take(4), "little")

    def u64(self) -> int:
        """Return the next 64-bit number."""
        return int.from_bytes(self._take(8), "little")

    def data(self) -> bytes:
        """Return the bytes of the next text."""
        return self._take(self.u32())

    def text(self) -> str:
        """Return the next text."""
        return self.data().decode("utf-8", "replace")

    def empty(self) -> bool:
        """Return whether all fields are read."""
        return self._at == len(self._payload)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._payload):
            raise FrameError("the payload is too short")
        taken = self._payload[self._at : end]
        self._at = end
        return taken
