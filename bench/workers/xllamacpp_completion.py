"""Asks a server of the package `xllamacpp` for a completion. Workers of that package import it."""

import json
import urllib.request
from typing import Any


def completion(address: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of llama.cpp's `/completion` at `address`. Raises urllib.error.HTTPError if
    it refuses."""
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
