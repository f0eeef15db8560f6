"""The type of an entry of the route table, and the values that many entries share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp

from penstock.api.schema.errors import ErrorEnvelope
from penstock.api.services import Services

JSON: Final = "application/json"
TEXT: Final = "text/plain"
FORM: Final = "multipart/form-data"
ANY_MEDIA: Final = "*/*"

# Error statuses of operations that read a body: bad JSON or a bad field, a stalled body, a body
# that is too large, too many bodies at once.
BODY_ERRORS: Final = (400, 408, 413, 429)
# Error statuses of operations that use an engine: unknown model, full queue, engine failure, engine
# starting or unloaded.
ENGINE_ERRORS: Final = (404, 429, 500, 503)
# Error statuses of operations that load or unload adapters: unusable files in the folder, no access
# to the folder, a conflict with loaded adapters.
ADAPTER_ERRORS: Final = (400, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503)
# Error statuses of operations that read messages: a file named in a message was not kept, or is a
# placeholder for an error.
FILE_ERRORS: Final = (410, 422)
# Error statuses of operations that continue a session: the session is busy, or the disk is full.
SESSION_ERRORS: Final = (409, 507)
# Error statuses of operations on stored objects: a bad request, an unknown, elided or broken
# object, a body that is too large, too many requests, an unavailable database, a full disk.
STORE_ERRORS: Final = (400, 404, 408, 410, 413, 422, 429, 503, 507)


@dataclass(frozen=True)
class Query:
    """A query parameter. `schema`: the JSON schema of its value."""

    name: str
    description: str
    schema: Mapping[str, Any]


TEXT_VALUE: Final = {"type": "string"}
AFTER: Final = Query("after", "The last id of the previous page.", TEXT_VALUE)
BEFORE: Final = Query("before", "The first id of the next page.", TEXT_VALUE)
ORDER: Final = Query("order", "Sort order by age.", {"enum": ["asc", "desc"]})
LIMIT: Final = Query("limit", "The maximum page size.", {"type": "integer", "minimum": 1})
PAGES: Final = (LIMIT, AFTER, BEFORE, ORDER)
ANTHROPIC_PAGES: Final = (
    *PAGES,
    Query("page", "The `next_page` of the previous page.", TEXT_VALUE),
)


def enabled_always(services: Services) -> bool:
    """Return True, for operations that every server has."""
    return True


@dataclass(frozen=True)
class Operation:
    """One HTTP method of one path.

    `route`: method and path, such as "GET /v1/files/{file_id}".
    `endpoint`: builds the ASGI application that serves the operation.
    `id`, `tag`, `summary`: the operation's OpenAPI fields.
    `request`: the type of the request body; None: no body.
    `request_media`: the content type of the request body.
    `example`: the request body that the API explorer proposes.
    `response`: the type of the JSON response; None: the response has no schema.
    `media`: the content type of the response; None: the response has no body.
    `events`: (OpenAPI component name, type of the data) of each event in a streamed response.
    `status`: the status of a successful response.
    `errors`: the statuses of error responses.
    `error`: the type of an error's JSON; None: errors are plain text.
    `query`: the query parameters.
    `enabled`: returns whether the server has this route with its settings.

    `request`, `response` and an event's type may be a tuple of types: the JSON has one of them.
    """

    route: str
    endpoint: Callable[[Services], ASGIApp]
    id: str
    tag: str
    summary: str
    request: Any = None
    request_media: str = JSON
    example: Any = None
    response: Any = None
    media: str | None = JSON
    events: tuple[tuple[str, Any], ...] = ()
    status: int = 200
    errors: tuple[int, ...] = ()
    error: Any = ErrorEnvelope
    query: tuple[Query, ...] = ()
    enabled: Callable[[Services], bool] = enabled_always

    @property
    def method(self) -> str:
        """The HTTP method, in capitals."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with Starlette's `{name:convertor}` parameters."""
        return self.route.partition(" ")[2]
