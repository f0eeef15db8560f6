"""Arguments of functions whose schema the server does not know as a struct."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.agent.tools.tool import BadArguments


class JsonArguments(msgspec.Struct, frozen=True):
    """The arguments of a call: a JSON object.

    - `text`: as the model wrote them.
    """

    values: dict[str, Any]
    text: str


def decode_json_arguments(arguments: str) -> JsonArguments:
    """Return the arguments of a call. Empty arguments are an empty object. Raises BadArguments if
    they are not a JSON object."""
    text = arguments.strip() or "{}"
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadArguments(f"the arguments must be a JSON object: {error}") from None
    return JsonArguments(values, text)
