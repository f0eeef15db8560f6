"""The server's side of the protocol of `runner/interpreter.py`.

User code can write anything to the interpreter's descriptors. A reply is accepted only behind the
random nonce of the request that waits for it, and only within the limits.
"""

from __future__ import annotations

import asyncio

import msgspec

NONCE_BYTES = 16
MAX_SKIPPED_BYTES = 16 * 1024 * 1024
MAX_REPLY_BYTES = 40 * 1024 * 1024
MAX_PICTURES = 32 + 64  # images and frames
MAX_FIELDS = 4 + MAX_PICTURES
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# Loads the interpreter: compiled code arrives on the channel, which is descriptor 3.
BOOTSTRAP = """\
import marshal, sys
from os import read
channel = 3
def receive(size):
    data = b""
    while len(data) < size:
        part = read(channel, size - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data
def part():
    return receive(int.from_bytes(receive(4), "big"))
def load():
    names = {"__builtins__": dict(vars(sys.modules["builtins"])), "__name__": "penstock"}
    exec(marshal.loads(part()), names)
    return names
interpreter, pictures = load(), load()
interpreter["serve"](channel, pictures["Pictures"](part()))
"""
PARTS = ("interpreter.py", "pictures.py", "figures.py")


class BadReply(Exception):
    """The interpreter sent something that is not a reply, or one over the limits."""


class Reply(msgspec.Struct, kw_only=True):
    """The interpreter's reply to a job; PythonResult describes the fields."""

    succeeded: bool = False
    exception: str | None = None
    result: str | None = None
    result_type: str | None = None
    images: list[bytes] = msgspec.field(default_factory=list)
    video_frames: list[bytes] = msgspec.field(default_factory=list)


def encode_setup(code: dict[str, str]) -> bytes:
    """Return the first message on the channel. `code`: compiled files in hex, by name."""
    return b"".join(sized(bytes.fromhex(code[name])) for name in PARTS)


def encode_job(nonce: bytes, marker: bytes, code: str) -> bytes:
    """Return the request to run `code`; its characters that UTF-8 cannot encode become `?`."""
    return nonce + marker + sized(code.encode("utf-8", "replace"))


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def read_reply(reader: asyncio.StreamReader, nonce: bytes) -> Reply:
    """Return the reply to the request with this nonce.

    Raises IncompleteReadError at the end of the channel, BadReply if the reply is malformed.
    """
    await skip_to(reader, nonce)
    reply, budget = Reply(), MAX_REPLY_BYTES
    for _ in range(MAX_FIELDS + 1):
        tag = await reader.readexactly(1)
        size = int.from_bytes(await reader.readexactly(4), "big")
        budget -= size
        if budget < 0:
            raise BadReply("The reply is too large.")
        data = await reader.readexactly(size)
        if tag == b".":
            return reply
        add_field(reply, tag, data)
    raise BadReply("The reply has too many fields.")


async def skip_to(reader: asyncio.StreamReader, nonce: bytes) -> None:
    """Skip whatever user code wrote to the channel before the reply."""
    skipped = 0
    while skipped <= MAX_SKIPPED_BYTES:
        try:
            await reader.readuntil(nonce)
        except asyncio.LimitOverrunError as overrun:
            skipped += len(await reader.readexactly(overrun.consumed))
        else:
            return
    raise BadReply("The code wrote to the interpreter's channel.")


def add_field(reply: Reply, tag: bytes, data: bytes) -> None:
    """Set the field of the reply that `tag` names."""
    if tag == b"s":
        reply.succeeded = data == b"success"
    elif tag == b"x":
        reply.exception = data.decode(errors="replace")
    elif tag == b"r":
        reply.result = data.decode(errors="replace")
    elif tag == b"t":
        reply.result_type = data.decode(errors="replace")
    elif tag in (b"i", b"v"):
        if data.startswith(PNG_SIGNATURE):
            (reply.images if tag == b"i" else reply.video_frames).append(data)
    else:
        raise BadReply(f"The reply has an unknown field {tag!r}.")
