"""Pages of lists, and the queries that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

from starlette.types import Scope

from penstock.base.errors import InvalidRequest

MAX_LIMIT: Final = 10_000
DEFAULT_ITEMS: Final = 20
MAX_ITEMS: Final = 100

_T = TypeVar("_T")


def query_of(scope: Scope) -> dict[str, str]:
    """The query's fields; of one given twice, the last."""
    text: str = scope["query_string"].decode("ascii", "replace")
    return {name: values[-1] for name, values in parse_qs(text).items()}


def limit_of(query: Mapping[str, str], *, default: int = MAX_LIMIT, most: int = MAX_LIMIT) -> int:
    """The query's `limit`, from 1 to `most`. Raises InvalidRequest."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise InvalidRequest(f"`limit` must be an integer from 1 to {most}", field="limit")
    return int(text)


def page_of(
    items: Sequence[_T], after: str | None, limit: int, id_of: Callable[[_T], str]
) -> tuple[list[_T], bool]:
    """(the items that follow the one with the id `after`, whether there are more). After an id
    that is not there nothing follows."""
    start = 0
    if after is not None:
        places = (index for index, item in enumerate(items) if id_of(item) == after)
        start = next(places, len(items) - 1) + 1
    return list(items[start : start + limit]), start + limit < len(items)


def items_page(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of a response's items, which are given oldest first, in the form of the reference
    API. `query`: `limit` (1 to 100), `order` ("asc", "desc") and `after`, the id that the page
    before ended with. Raises InvalidRequest."""
    limit = limit_of(query, default=DEFAULT_ITEMS, most=MAX_ITEMS)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest('`order` must be "asc" or "desc"', field="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise InvalidRequest("`after` is not the id of an item of this list", field="after")
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > limit,
    }
