"""Pages of a list, as OpenAI and Anthropic clients ask for them in the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from penstock.base.errors import InvalidRequest

MAX_LIMIT: Final = 10_000
MAX_DIGITS: Final = 9
# What OpenAI calls `after` and `before`, and what Anthropic does, now and before now.
AFTER: Final = ("after", "after_id", "page")
BEFORE: Final = ("before", "before_id")

_T = TypeVar("_T")


def in_order(newest_first: Sequence[_T], query: Mapping[str, str]) -> Sequence[_T]:
    """The items in the query's `order`: "desc", the newest first, unless it says "asc". Raises
    InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest('`order` must be "asc" or "desc"', field="order")
    return newest_first[::-1] if order == "asc" else newest_first


def page_of(
    items: Sequence[_T],
    query: Mapping[str, str],
    id_of: Callable[[_T], str],
    *,
    default_limit: int = MAX_LIMIT,
    max_limit: int = MAX_LIMIT,
) -> tuple[Sequence[_T], bool]:
    """(one page of `items`, whether the list goes on beyond it). `query`: `limit`, and the ids that
    the page comes `after`, `before` or between. Raises InvalidRequest."""
    limit = _limit(query.get("limit"), default_limit, max_limit)
    after, before = (_place(items, query, names, id_of) for names in (AFTER, BEFORE))
    start = 0 if after is None else after + 1
    end = len(items) if before is None else max(before, start)
    if before is not None and after is None:  # those next to it
        return items[max(end - limit, 0) : end], limit < end
    return items[start : min(start + limit, end)], start + limit < end


def envelope(page: Sequence[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    """A page of objects that have an `id`, as OpenAI's API gives it."""
    return {
        "object": "list",
        "data": list(page),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": more,
    }


def _limit(value: str | None, default: int, most: int) -> int:
    if value is None:
        return default
    good = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
    if not (good and 1 <= int(value) <= most):
        raise InvalidRequest(f"`limit` must be an integer from 1 to {most}", field="limit")
    return int(value)


def _place(
    items: Sequence[_T], query: Mapping[str, str], names: Sequence[str], id_of: Callable[[_T], str]
) -> int | None:
    """The index of the item that the query names, if it names one."""
    name = next((name for name in names if name in query), None)
    if name is None:
        return None
    for index, item in enumerate(items):
        if id_of(item) == query[name]:
            return index
    raise InvalidRequest(f"`{name}` is not the id of an item of this list", field=name)
