"""A route as the served description tells it, and what many of them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

from penstock.api.schema.errors import ErrorEnvelope

JSON: Final = "application/json"
TEXT: Final = "text/plain"
FORM: Final = "multipart/form-data"
# Of whatever reads a body: bad JSON or a bad field, a body that stalls, is too large, or too many.
BODY_ERRORS: Final = (400, 408, 413, 429)
# Of whatever asks an engine: its queue is full, it failed, it is starting or unloaded.
ENGINE_ERRORS: Final = (404, 429, 500, 503)
# Of the adapter routes: what a folder holds, who may read it, what is loaded already.
ADAPTER_ERRORS: Final = (400, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503)
# Of whatever takes messages: a file that they name is not kept, or was not made.
FILE_ERRORS: Final = (410, 422)
# Of whatever goes on with a session: it is busy, or the disk is full.
SESSION_ERRORS: Final = (409, 507)
# Of whatever is stored: bad, unknown, elided or broken ones, too much, a database that is gone, a
# disk that is full.
STORE_ERRORS: Final = (400, 404, 408, 410, 413, 422, 429, 503, 507)


@dataclass(frozen=True)
class Query:
    """A field of the query, and the JSON schema of its value."""

    name: str
    description: str
    schema: Mapping[str, Any]


TEXT_VALUE: Final = {"type": "string"}
AFTER: Final = Query("after", "The id that the page before ended with.", TEXT_VALUE)
ORDER: Final = Query("order", "By age.", {"enum": ["asc", "desc"]})
LIMIT: Final = Query("limit", "So many at most.", {"type": "integer", "minimum": 1})
BEFORE: Final = Query("before", "The id that the page after began with.", TEXT_VALUE)
PAGES: Final = (LIMIT, AFTER, BEFORE, ORDER)
ANTHROPIC_PAGES: Final = (*PAGES, Query("page", "The `next_page` of the page before.", TEXT_VALUE))
CARD_PAGES: Final = (
    LIMIT,
    Query("after_id", AFTER.description, TEXT_VALUE),
    Query("before_id", BEFORE.description, TEXT_VALUE),
)
RESUMED: Final = (
    Query(
        "stream",
        "Its stream again, if it was made with `background` and `stream`.",
        {"type": "boolean"},
    ),
    Query(
        "starting_after",
        "With `stream`: the `sequence_number` of the last event that is known.",
        {"type": "integer", "minimum": 0},
    ),
)


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    `request`: the type of its body, sent as `request_media`. `answer`: the type of its JSON, or
    None for what has no schema. `media` None: the answer has no body. `events`: the types of a
    streamed answer's data, with their names in the description. `error`: the type of its errors'
    JSON, or None for plain text. Several types in a tuple: any of them. `query`: what may stand
    in the query.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    id: str
    tag: str
    summary: str
    request: Any = None
    request_media: str = JSON
    answer: Any = None
    media: str | None = JSON
    events: tuple[tuple[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    error: Any = ErrorEnvelope
    query: tuple[Query, ...] = ()

    @property
    def statuses(self) -> list[int]:
        """The statuses of the errors, each once."""
        return sorted(set(self.errors))


def phrase(status: int) -> str:
    """The meaning of a status, in words."""
    return HTTPStatus(status).phrase
