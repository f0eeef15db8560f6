"""Pages of a list, as the reference API gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.base.errors import InvalidRequest

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100


def page_of(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of `items`, which are given oldest first. `query`: `limit` (1 to 100), `order`
    ("asc", "desc") and `after`, the id that the page before ended with. Raises InvalidRequest."""
    limit = _limit(query.get("limit"))
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


def _limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_LIMIT
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MAX_LIMIT):
        raise InvalidRequest(f"`limit` must be an integer from 1 to {MAX_LIMIT}", field="limit")
    return int(value)
