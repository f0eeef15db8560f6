"""Marks the places of images, recordings and videos in the text of messages.

All rewrites of messages (`message_fallbacks`, `role_order`) work on strings, so an item is a mark
with its number until the template is rendered. Then the marks of a message become what the template
expects: entries of a list of content parts, or placeholder texts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, Image, Part, Video
from penstock.models.media.prepared import MediaKind

MARK: Final = "\U0010ffff"
"""A code point that is never a character. It surrounds the number of an item."""
MARKS: Final = re.compile(f"{MARK}([0-9]{{1,6}}){MARK}")
MARKS_ON_LINES: Final = re.compile(f"\n?{MARK}([0-9]{{1,6}}){MARK}\n?")

TemplateMessage = dict[str, Any]
"""A message in the `transformers` format: `role`, `content` (a string) and optionally `name`,
`reasoning_content`, `tool_calls`, `tool_call_id`."""


def media_kind(part: Part) -> MediaKind | None:
    """Return the kind of a media part, None for any other part."""
    match part:
        case Image():
            return "image"
        case Audio():
            return "audio"
        case Video():
            return "video"
        case _:
            return None


def mark_of(number: int) -> str:
    """Return the mark of the item with this number."""
    return f"{MARK}{number}{MARK}"


def numbers_in(texts: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the numbers of the items in the order of their marks. Raises InvalidRequest unless
    each of the numbers 0 to `count` - 1 occurs once: a text that contains a mark could forge an
    item."""
    numbers = tuple(int(found[1]) for text in texts for found in MARKS.finditer(text))
    if sorted(numbers) != list(range(count)):
        raise InvalidRequest(
            "the messages contain the code point U+10FFFF, which is not a character",
            field="messages",
        )
    return numbers


def with_marks_after_results(
    messages: Sequence[TemplateMessage], kinds: Sequence[MediaKind], shown: Collection[MediaKind]
) -> list[TemplateMessage]:
    """Move the marks of tool results with an item that the template does not show there into a
    user message after the results of the turn.

    `kinds`: the kind of each item. `shown`: the kinds that the template shows in tool results.
    """
    found: list[TemplateMessage] = []
    moved: list[str] = []
    for message in messages:
        if message["role"] != "tool":
            found += _user_message(moved)
            moved = []
        marks = list(MARKS.finditer(message["content"])) if message["role"] == "tool" else []
        if any(_kind(mark, kinds) not in shown for mark in marks):
            moved += (mark[0] for mark in marks)
            message = {**message, "content": MARKS_ON_LINES.sub("", message["content"])}
        found.append(message)
    return found + _user_message(moved)


def _kind(mark: re.Match[str], kinds: Sequence[MediaKind]) -> MediaKind | None:
    number = int(mark[1])
    return kinds[number] if number < len(kinds) else None


def _user_message(marks: Sequence[str]) -> list[TemplateMessage]:
    return [{"role": "user", "content": "\n".join(marks)}] if marks else []
