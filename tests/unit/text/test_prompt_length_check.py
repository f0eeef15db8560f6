"""A far too long text is detected from a part of it, and a text that fits is never rejected."""

from __future__ import annotations

import pytest

from penstock.text.prompt_length_check import (
    PORTION_CHARS,
    SPARE_TOKENS,
    exceeds_room,
    needs_length_check,
    overfull_end,
    overfull_start,
)

ROOM = 1000
LIMIT = 2 * ROOM + SPARE_TOKENS


class Counter:
    """Counts one token per `chars` characters, and the characters that it has read."""

    def __init__(self, chars: int) -> None:
        self.chars, self.shown = chars, 0

    def __call__(self, text: str) -> int:
        self.shown += len(text)
        return -(-len(text) // self.chars)


@pytest.mark.parametrize("chars", [1, 4, 100])
def test_text_that_fits_passes_the_check(chars: int) -> None:
    text = "x" * (ROOM * chars)
    assert not exceeds_room(Counter(chars), [text], ROOM)
    assert not exceeds_room(Counter(chars), [text[: len(text) // 2]] * 2, ROOM)
    assert overfull_start(Counter(chars), text, ROOM) == text
    assert overfull_end(Counter(chars), text, ROOM) == text


def test_only_a_part_of_a_far_too_long_text_is_tokenized() -> None:
    count = Counter(4)
    assert exceeds_room(count, ["x" * 50_000_000], ROOM)
    assert count.shown <= 4 * LIMIT + PORTION_CHARS
    many = Counter(4)
    assert exceeds_room(many, ["x" * 100] * 100_000, ROOM)
    assert many.shown <= 4 * LIMIT + 100


def test_overfull_start_and_end_keep_enough_text() -> None:
    text = "".join(chr(97 + k % 26) for k in range(1_000_003))
    for kept in (overfull_start(Counter(4), text, ROOM), overfull_end(Counter(4), text, ROOM)):
        assert 4 * LIMIT <= len(kept) <= 4 * LIMIT + 2 * PORTION_CHARS
    assert text.startswith(overfull_start(Counter(4), text, ROOM))
    assert text.endswith(overfull_end(Counter(4), text, ROOM))


def test_texts_of_usual_length_need_no_check() -> None:
    assert not needs_length_check(5 * ROOM, ROOM)
    assert needs_length_check(1_000_000, ROOM)
