"""Ids of output items: they tell which response they belong to, so that a later request can refer
to one (`item_reference`) without an index of items."""

from __future__ import annotations

import re
from typing import Final

RESPONSE_PREFIX: Final = "resp_"
ITEM_ID: Final = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})[0-9a-f]{4,8}")


def item_id(prefix: str, response_id: str, index: int) -> str:
    """`item_id("msg_", "resp_<32 hex>", 0)` -> `msg_<32 hex>0000`."""
    return f"{prefix}{response_id.removeprefix(RESPONSE_PREFIX)}{index:04x}"


def response_of(id: str) -> str | None:
    """The response that an item belongs to; None for what is no id of an item."""
    match = ITEM_ID.fullmatch(id)
    return RESPONSE_PREFIX + match.group(1) if match is not None else None
