"""Writes the 404 message for an unknown path: it suggests the nearest route or a correction of the
base URL."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from starlette.routing import Route

VERSION: Final = "/v1"
# Longer paths are not compared: the cost grows with the square of the length.
MAX_COMPARED_CHARS: Final = 200
MIN_SIMILARITY: Final = 0.6
# Path -> error message, for routes of the official clients that this server lacks.
UNSUPPORTED: Final = {
    "/v1/responses/compact": (
        'this server does not compact conversations; send `"truncation": "auto"`, which drops the'
        " oldest turns of a prompt that is too long, or a shorter `input`"
    ),
    **dict.fromkeys(
        ("/v1/audio/transcriptions", "/v1/audio/translations"),
        "this server transcribes in /v1/chat/completions: send the recording as an `input_audio`"
        " part to a Whisper model; the line `task: translate` in a text part asks for English",
    ),
    **dict.fromkeys(
        ("/v1/images/edits", "/v1/images/variations"),
        "this server makes images from a prompt only; the route is /v1/images/generations",
    ),
}


def unknown_route(path: str, routes: Sequence[Route]) -> str:
    """Return the error message for a path that none of `routes` matches."""
    cut = path if len(path) <= MAX_COMPARED_CHARS else path[:MAX_COMPARED_CHARS] + "..."
    message = f"there is no route {cut}"
    if path.startswith(f"{VERSION}{VERSION}/"):
        meant = path.removeprefix(VERSION)
        if _matches_any(routes, meant):
            return (
                f"{message}; the client adds {VERSION} itself, so its base URL must end without it;"
                f" the route is {meant}"
            )
    if _matches_any(routes, VERSION + path):
        return (
            f"{message}; the client's base URL must end in {VERSION}; the route is {VERSION}{path}"
        )
    nearest = _nearest(path, routes)
    return message if nearest is None else f"{message}; the nearest one is {nearest}"


def _matches_any(routes: Sequence[Route], path: str) -> bool:
    return any(route.path_regex.match(path) for route in routes)


def _nearest(path: str, routes: Sequence[Route]) -> str | None:
    """Return the route most similar to `path`, or None if none is similar. Path parameters compare
    as equal."""
    cut = path[:MAX_COMPARED_CHARS]
    filled = {_fill_parameters(route.path_format, cut): route.path_format for route in routes}
    best = difflib.get_close_matches(cut, filled, n=1, cutoff=MIN_SIMILARITY)
    return filled[best[0]] if best else None


def _fill_parameters(pattern: str, path: str) -> str:
    """Replace each parameter of `pattern` by the segment of `path` at the same position."""
    segments = path.split("/")
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        if part.startswith("{") and index < len(segments):
            parts[index] = segments[index]
    return "/".join(parts)
