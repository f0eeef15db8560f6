"""Limits on rendering a chat template: steps, time, characters.

A template is code from a model file and may be hostile. Every operation that repeats work or makes
a value is charged to a Budget first (see `sandbox`): sizes are checked before values are made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

MAX_STEPS = 4_000_000
MAX_SECONDS = 3.0
MAX_INTEGER_BITS = 4096
SPARE_CHARS = 1 << 20
"""Characters that one text may have in addition to four times the request's text."""
SPARE_TOTAL_CHARS = 1 << 28
"""Characters that all texts together may have in addition to 1024 times the request's text."""
CHARS_PER_STEP = 64
STEPS_PER_ITERATION = 32
"""Steps charged for an iteration of a loop or a macro call. One step is the work of visiting one
value."""

_WIDE_FIELD = re.compile(r"\d{5}|\*|\{[^{}]*\{")


class TemplateLimit(Exception):
    """Raised if a template exceeds a limit. The message names the limit."""


class Budget:
    """Limits one rendering of a template: steps, characters and CPU time. Not thread-safe.

    - `input_chars`: characters of the request's text, which raise the limits.
    - `max_chars`: characters that a single text may have.
    - `chars_left`: characters that all further texts together may have.
    - `steps_left`: steps that may still be charged.

    Time is CPU time of the thread, so that it does not depend on the load of the machine. It is not
    read before the wall-clock time, which is cheaper to read, passes the limit.
    """

    __slots__ = ("_deadline", "_start_s", "chars_left", "max_chars", "steps_left")

    def __init__(self, input_chars: int) -> None:
        self.steps_left = MAX_STEPS + input_chars
        self.max_chars = SPARE_CHARS + 4 * input_chars
        self.chars_left = SPARE_TOTAL_CHARS + 1024 * input_chars
        self._start_s = time.thread_time()
        self._deadline = time.monotonic() + MAX_SECONDS

    def charge_steps(self, steps: int = 1) -> bool:
        """Charge work before it is done. Returns True, so that a condition in a template can
        contain the call. Raises TemplateLimit."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise TemplateLimit("too many steps")
        if time.monotonic() > self._deadline:
            self._check_time()
        return True

    def _check_time(self) -> None:
        left_s = self._start_s + MAX_SECONDS - time.thread_time()
        if left_s < 0:
            raise TemplateLimit("too much time")
        self._deadline = time.monotonic() + left_s

    def charge_chars(self, chars: int) -> None:
        """Charge a text of this length before it is made. Raises TemplateLimit."""
        self.chars_left -= chars
        if chars > self.max_chars or self.chars_left < 0:
            raise TemplateLimit("a text is too long")
        self.charge_steps(1 + chars // CHARS_PER_STEP)

    def charge_value(self, value: Any) -> int:
        """Charge a walk over a value and return the approximate length of its text.

        An object that the value contains several times counts each time, since it would be written
        each time. Raises TemplateLimit if the text would be longer than `max_chars`.
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
                raise TemplateLimit("a value is too large")
            if steps & 1023 == 0:
                self.charge_steps(1024)
        self.charge_steps(steps & 1023)
        return total

    def text(self, value: Any) -> str:
        """Charge the text of a value, then return `str(value)`."""
        if isinstance(value, str):
            return value
        self.charge_chars(self.charge_value(value))
        return str(value)

    def concat(self, pieces: Iterable[str]) -> str:
        """Charge the joined text, then join the pieces. Raises TemplateLimit."""
        pieces = list(pieces)
        self.charge_chars(sum(map(len, pieces)))
        return "".join(pieces)

    def check_width(self, width: Any, rows: int = 1) -> None:
        """Charge padding of `rows` lines to a width."""
        if isinstance(width, int) and width > 0:
            self.charge_chars(width * rows)

    def check_pattern(self, pattern: str, values: Any) -> None:
        """Charge the formatting of values with a format string. Raises TemplateLimit for wide or
        computed field widths."""
        if _WIDE_FIELD.search(pattern):
            raise TemplateLimit("a format field is too wide")
        fields = pattern.count("{") + pattern.count("%")
        self.charge_chars(len(pattern) + (1 + fields) * (10_000 if fields else 1))
        self.charge_chars(fields * self.charge_value(values))


BUDGET: ContextVar[Budget] = ContextVar("template_budget")
"""The budget of the rendering in progress."""


def count_chars(value: Any) -> int:
    """Return the number of characters of all strings in nested dictionaries and lists, plus 8 per
    value."""
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
