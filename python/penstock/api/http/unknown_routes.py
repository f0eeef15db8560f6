"""The answer to a path that no route has: the nearest route, or the wrong base URL of a client."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from starlette.routing import Route

VERSION: Final = "/v1"
MOST_COMPARED_CHARS: Final = 200
"""Comparing takes the square of it."""
LEAST_LIKENESS: Final = 0.6
# Methods of official clients whose paths would otherwise be taken for the id of something.
ABSENT: Final = {
    "/v1/responses/compact": (
        'this server does not compact conversations; send `"truncation": "auto"`, which drops the'
        " oldest turns of a prompt that is too long, or a shorter `input`"
    )
}


def unknown_route(path: str, routes: Sequence[Route]) -> str:
    """The message for a path that none of `routes` has."""
    shown = path if len(path) <= MOST_COMPARED_CHARS else path[:MOST_COMPARED_CHARS] + "..."
    told = f"there is no route {shown}"
    if path.startswith(f"{VERSION}{VERSION}/"):
        meant = path.removeprefix(VERSION)
        if _has(routes, meant):
            return (
                f"{told}; the client adds {VERSION} itself, so its base URL must end without it;"
                f" the route is {meant}"
            )
    if _has(routes, VERSION + path):
        return f"{told}; the client's base URL must end in {VERSION}; the route is {VERSION}{path}"
    near = _nearest(path, routes)
    return told if near is None else f"{told}; the nearest one is {near}"


def _has(routes: Sequence[Route], path: str) -> bool:
    return any(route.path_regex.match(path) for route in routes)


def _nearest(path: str, routes: Sequence[Route]) -> str | None:
    """The route that is most like the path, with the path's own words in its parameters."""
    asked = path[:MOST_COMPARED_CHARS]
    filled = {_filled(route.path_format, asked): route.path_format for route in routes}
    best = difflib.get_close_matches(asked, filled, n=1, cutoff=LEAST_LIKENESS)
    return filled[best[0]] if best else None


def _filled(pattern: str, path: str) -> str:
    words = path.split("/")
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        if part.startswith("{") and index < len(words):
            parts[index] = words[index]
    return "/".join(parts)
