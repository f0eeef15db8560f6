"""Charges the cost of operators and methods in chat templates before they run (see
`render_budget`)."""

from __future__ import annotations

from typing import Any, Final

from jinja2.exceptions import SecurityError

from penstock.text.chat_templates.filter_costs import check_replace
from penstock.text.chat_templates.render_budget import MAX_INTEGER_BITS, Budget, TemplateLimit

# fmt: off
_STRING_METHODS: Final = frozenset({
    "capitalize", "casefold", "center", "count", "endswith", "find", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper", "zfill",
})
# fmt: on
_CONTAINER_METHODS: Final = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})


def check_operands(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Charge a binary operator to the budget. Raises TemplateLimit."""
    budget.charge_steps()
    if isinstance(left, int) and isinstance(right, int):
        _check_integers(operator, left, right)
    elif operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                budget.charge_chars(max(0, times) * len(sized))
    elif operator == "%" and isinstance(left, str):
        budget.check_pattern(left, right)
    elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        budget.charge_chars(len(left) + len(right))


def check_method(budget: Budget, function: Any, args: tuple[Any, ...]) -> None:
    """Charge a method call of a string, container or number to the budget. Raises SecurityError for
    a method that is not allowed, and TemplateLimit."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str):
        name = function.__name__
        if name not in _STRING_METHODS:
            raise SecurityError(f"{name} is not allowed in a chat template")
        budget.charge_chars(len(owner))
        if name == "replace" and len(args) >= 2:
            check_replace(budget, owner, args[0], args[1])
        elif name == "join" and args:
            budget.charge_chars(budget.charge_value(args[0]) + len(owner) * len(args[0]))
        elif name in ("center", "ljust", "rjust", "zfill") and args:
            budget.check_width(args[0])
    elif isinstance(owner, list | tuple | dict | int | float) and not isinstance(owner, bool):
        if function.__name__ not in _CONTAINER_METHODS:
            raise SecurityError(f"{function.__name__} is not allowed in a chat template")
        budget.charge_steps(1 + (len(owner) if isinstance(owner, list | tuple) else 0))


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * abs(right)
    if bits > MAX_INTEGER_BITS:
        raise TemplateLimit("a number is too large")
