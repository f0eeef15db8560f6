"""Selects a page of a list by the query parameters of OpenAI's and Anthropic's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from penstock.base.errors import InvalidRequest

MAX_LIMIT: Final = 10_000
MAX_DIGITS: Final = 9
# Parameter names: in OpenAI's API, then in current and older versions of Anthropic's API.
AFTER: Final = ("after", "after_id", "page")
BEFORE: Final = ("before", "before_id")

_T = TypeVar("_T")


def in_order(newest_first: Sequence[_T], query: Mapping[str, str]) -> Sequence[_T]:
    """Return the items in the `order` that the query names: newest first for "desc" (the default),
    oldest first for "asc". Raises InvalidRequest."""
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
    """Return (one page of `items`, whether there are more items). Raises InvalidRequest.

    `query`: may contain the `limit` of items per page, and the ids of the items that the page comes
    `after` and `before`.
    `id_of`: returns the id of an item.
    """
    limit = _limit(query.get("limit"), default_limit, max_limit)
    after, before = (_index(items, query, names, id_of) for names in (AFTER, BEFORE))
    start = 0 if after is None else after + 1
    end = len(items) if before is None else max(before, start)
    if before is not None and after is None:  # the page is the last items before `before`
        return items[max(end - limit, 0) : end], limit < end
    return items[start : min(start + limit, end)], start + limit < end


def envelope(page: Sequence[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    """Return the JSON list object of OpenAI's API. `page`: objects that have an `id`. `more`: the
    value of `has_more`."""
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
    is_number = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
    if not (is_number and 1 <= int(value) <= most):
        raise InvalidRequest(f"`limit` must be an integer from 1 to {most}", field="limit")
    return int(value)


def _index(
    items: Sequence[_T], query: Mapping[str, str], names: Sequence[str], id_of: Callable[[_T], str]
) -> int | None:
    """Return the index of an item. Its id is the value of the first of `names` that the query
    contains; None if the query contains none of the names. Raises InvalidRequest for an unknown
    id."""
    name = next((name for name in names if name in query), None)
    if name is None:
        return None
    for index, item in enumerate(items):
        if id_of(item) == query[name]:
            return index
    raise InvalidRequest(f"`{name}` is not the id of an item of this list", field=name)
