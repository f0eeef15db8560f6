"""Charges the cost of chat template filters before they run (see `render_budget`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from typing import Any, Final

from jinja2.exceptions import SecurityError

from penstock.text.chat_templates.render_budget import Budget, TemplateLimit

ESCAPED_CHARS: Final = 6
"""Length of the longest HTML escape of a character."""
QUOTED_CHARS: Final = 12
"""Length of the longest URL escape of a character: four bytes of three characters each."""
WRAP_WORK: Final = 100
"""Divisor of the cost of wrapping a long word or a run of blanks: characters squared / (width *
WRAP_WORK) steps. textwrap copies the rest of the word for each line."""
_PIECES: Final = re.compile(r"\S+|\s+")


def check_filter(budget: Budget, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Charge a filter call to the budget. Raises TemplateLimit if it exceeds the budget, and
    SecurityError for arguments that are not allowed."""
    value = args[0] if args else None
    if name == "replace" and len(args) >= 3:
        check_replace(budget, budget.text(value), args[1], args[2])
    elif name == "join":
        glue = kwargs.get("d", args[1] if len(args) > 1 else "")
        count = len(value) if isinstance(value, Sized) else 0
        budget.charge_chars(count * len(budget.text(glue)))
    elif name == "format":
        budget.check_pattern(budget.text(value), (args[1:], kwargs))
    elif name in ("center", "indent", "batch"):
        rows = budget.text(value).count("\n") + 1 if name == "indent" else 1
        for width in (*args[1:2], *kwargs.values()):
            budget.check_width(len(width) if isinstance(width, str) else width, rows)
    elif name == "round":
        digits = kwargs.get("precision", args[1] if len(args) > 1 else 0)
        if isinstance(digits, int) and abs(digits) > 100:
            raise TemplateLimit("too many digits")
    elif name in _GROWTH:
        budget.charge_chars(_GROWTH[name] * len(budget.text(value)))
    elif name == "wordwrap":
        _check_wrap(budget, budget.text(value), args[1:], kwargs)
    elif name == "slice":
        slices = kwargs.get("slices", args[1] if len(args) > 1 else 0)
        budget.charge_steps(slices if isinstance(slices, int) and slices > 0 else 0)
    elif name == "pprint":
        budget.charge_chars(_printed_chars(budget, value))
    elif name == "sum" and len(args) > 2 | ("start" in kwargs):
        raise SecurityError("the filter sum does not accept a start in a chat template")


def check_replace(budget: Budget, text: str, old: Any, new: Any) -> None:
    """Charge the length of `text` after all `old` are replaced by `new`."""
    if isinstance(old, str) and isinstance(new, str):
        budget.charge_chars(len(text) + text.count(old) * len(new))


_GROWTH: Final = {"e": ESCAPED_CHARS, "escape": ESCAPED_CHARS, "urlencode": QUOTED_CHARS}


def _check_wrap(
    budget: Budget, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    width = kwargs.get("width", args[0] if args else 79)
    glue = kwargs.get("wrapstring", args[2] if len(args) > 2 else None)
    budget.charge_chars(len(text) * (1 + len(budget.text(glue or ""))))
    if isinstance(width, int) and width > 0:
        squares = sum(len(piece) ** 2 for piece in _PIECES.findall(text))
        budget.charge_steps(squares // (width * WRAP_WORK))


def _printed_chars(budget: Budget, value: Any, column: int = 1) -> int:
    """Return an upper bound of the number of characters that `pprint` writes for a value that
    starts in this column. Each word of a text and each item may get its own line."""
    budget.charge_steps()
    if isinstance(value, str):
        return (len(value.split()) + value.count("\n") + 1) * (column + 4) + len(repr(value))
    if isinstance(value, Mapping):
        ends = {key: column + len(repr(key)) + 4 for key in value}
        return sum(end + _printed_chars(budget, value[key], end) for key, end in ends.items())
    if isinstance(value, list | tuple):
        return sum(column + _printed_chars(budget, item, column + 2) for item in value)
    return len(budget.text(value)) + 2
