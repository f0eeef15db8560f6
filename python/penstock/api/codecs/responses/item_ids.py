"""Ids of output items and containers. The id of an item contains the id of its response, so that
an `item_reference` can be resolved without an index of items."""

from __future__ import annotations

import re
from typing import Final

RESPONSE_PREFIX: Final = "resp_"
CONTAINER_PREFIX: Final = "cntr_"
ITEM_ID: Final = re.compile(r"(?:msg|rs|fc|ci|sc|sco|ws|mcp)_([0-9a-f]{32})[0-9a-f]{4,8}")


def item_id(prefix: str, response_id: str, index: int) -> str:
    """Return the id of output item number `index`: `item_id("msg_", "resp_<32 hex>", 0)` is
    `msg_<32 hex>0000`."""
    return f"{prefix}{response_id.removeprefix(RESPONSE_PREFIX)}{index:04x}"


def response_of(id: str) -> str | None:
    """Return the id of the response to which an item belongs; None if `id` is not an item's id."""
    match = ITEM_ID.fullmatch(id)
    return RESPONSE_PREFIX + match.group(1) if match is not None else None


def container_of(response_id: str) -> str:
    """Return the id of the container of a conversation that starts with this response."""
    return CONTAINER_PREFIX + response_id.removeprefix(RESPONSE_PREFIX)
