"""data: URLs, and base64 in the forms that clients send."""

from __future__ import annotations

import base64
import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.data_url import MAX_ESCAPES, decode_base64, decode_data_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("data:text/plain;base64,aGk=", (b"hi", "text/plain")),
        ("DATA:Text/CSV;charset=utf-8;BASE64,aGk=", (b"hi", "text/csv")),
        ("data:;base64,aGk", (b"hi", None)),
        ("data:,a%20b", (b"a b", None)),
        ("data:text/plain,a,b", (b"a,b", "text/plain")),
        ("data:image/png;base64,aGk%3D", (b"hi", "image/png")),
        ("data:,", (b"", None)),
    ],
)
def test_data_urls(url: str, expected: tuple[bytes, str | None]) -> None:
    assert decode_data_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "data:", "data:text/plain;base64", "http://x", "data:;base64,#"]
)
def test_broken_data_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        decode_data_url(url)


@pytest.mark.parametrize("lead", range(4))
def test_long_escaped_content_takes_memory_of_its_own_size(lead: int) -> None:
    escaped = "data:," + "x" * lead + "%41%C3%A9" * 100_000
    tracemalloc.start()
    content, _ = decode_data_url(escaped)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert content == b"x" * lead + "Aé".encode() * 100_000
    assert peak_bytes < 8 * len(escaped)


def test_a_head_without_an_end_costs_nothing() -> None:
    endless = "data:" + ";" * 5_000_000 + ",x"
    tracemalloc.start()
    with pytest.raises(ValueError, match="comma"):
        decode_data_url(endless)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


@given(st.binary(max_size=100))
def test_base64_is_read_in_every_form(data: bytes) -> None:
    standard = base64.b64encode(data).decode()
    lines = "\r\n".join(standard[i : i + 4] for i in range(0, len(standard), 4))
    safe = base64.urlsafe_b64encode(data).decode()
    for text in (standard, standard.rstrip("="), lines, safe, safe.rstrip("="), f" {standard}\n"):
        assert decode_base64(text) == data


@pytest.mark.parametrize("text", ["#", "aGk=x", "aaaaa", "é", "a\x00bc"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_base64(text)


def test_base64_with_much_white_space_takes_memory_of_its_own_size() -> None:
    text = "QU JD " * 200_000
    tracemalloc.start()
    assert decode_base64(text) == b"ABC" * 200_000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * len(text)


def test_escapes_without_end_are_refused() -> None:
    assert decode_data_url("data:," + "%41" * 1000)[0] == b"A" * 1000
    with pytest.raises(ValueError, match="base64"):
        decode_data_url("data:," + "%41" * (MAX_ESCAPES + 1))


@given(st.text(max_size=30))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    for decode in (decode_base64, decode_data_url):
        with contextlib.suppress(ValueError):
            decode(text)
