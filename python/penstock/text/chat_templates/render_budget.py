"""What rendering one chat template may cost: steps, time, characters.

A template is code that came with a model file, so it may be hostile. Everything in it that repeats
or grows passes through a Budget first (see `sandbox`): sizes are checked before they are made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

MAX_STEPS = 4_000_000
MAX_SECONDS = 3.0
MAX_INTEGER_BITS = 4096
SPARE_CHARS = 1 << 20
"""A text may be this much longer than four times the request's own."""
SPARE_CHARS_MADE = 1 << 28
CHARS_PER_STEP = 64
STEPS_PER_TURN = 32
"""Of a loop or a macro: what Jinja does around one, in units of looking at one value."""

_WIDE_FIELD = re.compile(r"\d{5}|\*|\{[^{}]*\{")


class TemplateLimit(Exception):
    """A template asked for more than it may; the message says of what."""


class Budget:
    """The limits of one rendering. `input_chars`: size of what the request brought along.

    No text made may be longer than `max_chars`; all texts made together not than `chars_left`. Its
    time is that of the processor, which a busy machine does not lengthen: it is looked at when the
    clock, which is quicker to read, says that it may be over. One thread renders.
    """

    __slots__ = ("_began_s", "_deadline", "chars_left", "max_chars", "steps_left")

    def __init__(self, input_chars: int) -> None:
        self.steps_left = MAX_STEPS + input_chars
        self.max_chars = SPARE_CHARS + 4 * input_chars
        self.chars_left = SPARE_CHARS_MADE + 1024 * input_chars
        self._began_s = time.thread_time()
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int = 1) -> bool:
        """Account for work that is about to be done. True, so that a condition can hold it."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise TemplateLimit("too many steps")
        if time.monotonic() > self._deadline:
            self._look_at_time()
        return True

    def _look_at_time(self) -> None:
        left_s = self._began_s + MAX_SECONDS - time.thread_time()
        if left_s < 0:
            raise TemplateLimit("too much time")
        self._deadline = time.monotonic() + left_s

    def grow(self, chars: int) -> None:
        """Account for a text of this length that is about to be made."""
        self.chars_left -= chars
        if chars > self.max_chars or self.chars_left < 0:
            raise TemplateLimit("too long a text")
        self.spend(1 + chars // CHARS_PER_STEP)

    def weigh(self, value: Any) -> int:
        """Number of characters, about, that a value has when written out; at most `max_chars`.

        Shared parts count as often as they are reached, as they would be written.
        """
        total, steps, open_values = 0, 0, [value]
        while open_values:
            item = open_values.pop()
            steps += 1
            if isinstance(item, str):
                total += len(item) + 2
            elif isinstance(item, Mapping):
                open_values.extend(item.keys())
                open_values.extend(item.values())
            elif isinstance(item, list | tuple | set | frozenset):
                open_values.extend(item)
            total += 8
            if total > self.max_chars or len(open_values) + steps > MAX_STEPS:
                raise TemplateLimit("too large a value")
            if steps & 1023 == 0:
                self.spend(1024)
        self.spend(steps & 1023)
        return total

    def text(self, value: Any) -> str:
        """`str(value)`, weighed first."""
        if isinstance(value, str):
            return value
        self.grow(self.weigh(value))
        return str(value)

    def concat(self, pieces: Iterable[str]) -> str:
        """The pieces in one, if that is not too long."""
        pieces = list(pieces)
        self.grow(sum(map(len, pieces)))
        return "".join(pieces)

    def check_width(self, width: Any, rows: int = 1) -> None:
        """Refuse padding that makes a long text."""
        if isinstance(width, int) and width > 0:
            self.grow(width * rows)

    def check_pattern(self, pattern: str, values: Any) -> None:
        """Refuse a format with wide or computed field widths."""
        if _WIDE_FIELD.search(pattern):
            raise TemplateLimit("too wide a format field")
        fields = pattern.count("{") + pattern.count("%")
        self.grow(len(pattern) + (1 + fields) * (10_000 if fields else 1))
        self.grow(fields * self.weigh(values))


def measure(value: Any) -> int:
    """Characters of the strings in plain data, and some for each value (no sharing expected)."""
    total, open_values = 0, [value]
    while open_values:
        item = open_values.pop()
        total += 8
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            open_values.extend(item.keys())
            open_values.extend(item.values())
        elif isinstance(item, list | tuple):
            open_values.extend(item)
    return total
