"""Filters and global functions of chat templates, charged to the budget of the rendering."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from penstock.text.chat_templates.filter_costs import check_filter
from penstock.text.chat_templates.render_budget import BUDGET, Budget, TemplateLimit

# fmt: off
_FILTERS: Final = (
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e",
    "escape", "filesizeformat", "first", "float", "format", "groupby", "indent", "int", "items",
    "join", "last", "length", "list", "lower", "map", "max", "min", "pprint", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort",
    "string", "sum", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
    "wordwrap",
)
# fmt: on
# Filters that return a part of a value without visiting the rest: their arguments are not charged.
_LIGHT_FILTERS: Final = frozenset({"attr", "count", "d", "default", "first", "last", "length"})


class Refusal(jinja2.TemplateError):
    """Raised by `raise_exception` in a template: the model does not support the messages."""


class TemplateNamespace(Namespace):
    """Implements `namespace(...)`. Refuses names with a leading underscore, which could reach
    Python's internals, and has a repr without content."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        if any(str(name).startswith("_") for name in attributes):
            raise SecurityError("names in a namespace must not begin with an underscore")
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError("names in a namespace must not begin with an underscore")
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def template_filters(
    known: Mapping[str, Callable[..., Any]],
) -> dict[str, Callable[..., Any]]:
    """Return the filters of chat templates. `known`: Jinja's own filters."""
    return {name: _charged(name, known[name]) for name in _FILTERS} | {"tojson": _to_json}


def template_globals() -> dict[str, Any]:
    """Return the global functions of chat templates."""
    return {
        "range": _bounded_range,
        "dict": _make_dict,
        "namespace": TemplateNamespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }


def _charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that its arguments and result are charged and generators become lists."""
    takes_first = hasattr(function, "jinja_pass_arg")

    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = BUDGET.get()
        rest = args[int(takes_first) :]
        budget.charge_steps()
        if name not in _LIGHT_FILTERS:
            budget.charge_value((rest, tuple(kwargs.values())))
            check_filter(budget, name, rest, kwargs)
        result = function(*args, **kwargs)
        if hasattr(result, "__next__"):
            result = _drain(budget, result)
        if isinstance(result, list | tuple) and name not in _LIGHT_FILTERS:
            budget.charge_value(result)
        return result

    if takes_first:
        bounded.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return bounded


def _drain(budget: Budget, items: Iterable[Any]) -> list[Any]:
    made = []
    for item in items:
        budget.charge_steps()
        made.append(item)
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as `transformers` writes it: no HTML escapes, separators with spaces."""
    budget = BUDGET.get()
    chars = budget.charge_value(value)
    if isinstance(indent, int) and indent > 16:
        raise TemplateLimit("an indent is too wide")
    budget.charge_chars(chars)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    budget.charge_chars(len(text))
    return text


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    BUDGET.get().charge_steps(len(numbers))
    return numbers


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = dict(*args, **kwargs)
    BUDGET.get().charge_value(made)
    return made


def _raise_exception(message: object) -> None:
    raise Refusal(str(message)[:500])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 256:
        raise TemplateLimit("a date format is too long")
    return datetime.now().strftime(pattern)
