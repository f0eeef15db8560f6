"""Multipart bodies: the same however they arrive, and never more than a 400."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.api.http.multipart import PartHead, read_multipart
from penstock.base.errors import InvalidRequest

SCOPE = {"headers": [(b"content-type", b"multipart/form-data; boundary=B")]}
PIECES = [
    b"--B\r\n",
    b"--B--\r\n",
    b"\r\n",
    b'Content-Disposition: form-data; name="file"; filename="a/b.txt"\r\n\r\n',
    b'Content-Disposition: form-data; name="purpose"\r\n\r\n',
    b"Content-Disposition: form-data; name*=utf-8''x\r\n\r\n",
    b"Content-Disposition: attachment\r\n\r\n",
    b"Content-Type: text/plain\r\n",
    b"user_data",
    b"\x00\xff",
]
Part = tuple[str, str | None, bytes]


def parts_of(body: bytes, cut: int) -> list[Part] | None:
    """The parts of a body that arrives `cut` bytes at a time; None: it is refused."""

    async def arrive() -> AsyncIterator[bytes]:
        for start in range(0, len(body), cut):
            yield body[start : start + cut]

    async def read() -> list[Part]:
        parts: list[Part] = []
        async for event in read_multipart(SCOPE, arrive()):
            if isinstance(event, PartHead):
                parts.append((event.name, event.filename, b""))
            else:
                name, filename, data = parts[-1]
                parts[-1] = (name, filename, data + event)
        return parts

    try:
        return asyncio.run(read())
    except InvalidRequest as error:
        assert error.code == "invalid_multipart"
        return None


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=40)), max_size=12),
    st.integers(1, 20),
)
@example([b"\r\n", b"user_data", b"--B--\r\n"], 1)
@example([b"\r\n", b"--B--\r\n"], 1)
def test_any_bytes_are_parts_or_refused_however_they_arrive(pieces: list[bytes], cut: int) -> None:
    body = b"".join(pieces)
    assert parts_of(body, cut) == parts_of(body, max(1, len(body)))


@given(
    st.lists(
        st.tuples(st.sampled_from(["file", "purpose"]), st.binary(max_size=100)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 50),
)
def test_parts_come_back_as_they_were_sent(sent: list[tuple[str, bytes]], cut: int) -> None:
    sent = [(name, data.replace(b"--B", b"")) for name, data in sent]
    body = b"".join(
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + data + b"\r\n"
        for name, data in sent
    )
    assert parts_of(body + b"--B--\r\n", cut) == [(name, None, data) for name, data in sent]


def test_names_may_be_in_any_script() -> None:
    head = '--B\r\nContent-Disposition: form-data; name="file"; filename="日本.txt"\r\n\r\n'
    assert parts_of(head.encode() + b"x\r\n--B--\r\n", 3) == [("file", "日本.txt", b"x")]
