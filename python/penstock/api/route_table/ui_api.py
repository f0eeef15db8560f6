"""Entries of the route table: the web page's own routes. They are not part of the public API and of
its OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp

from penstock.api.http.same_origin import SameOrigin
from penstock.api.route_table.operation import Operation
from penstock.api.routes.ui.attachments import GetAttachment, UploadAttachment
from penstock.api.routes.ui.chats import (
    ChangeChat,
    CreateChat,
    DeleteChat,
    GetChat,
    ListChats,
)
from penstock.api.routes.ui.messages import (
    AnswerAgain,
    EditMessage,
    FollowMessage,
    SendMessage,
    StopAnswer,
)
from penstock.api.routes.ui.models import (
    CancelPull,
    GetServerInfo,
    ListCatalogue,
    ListPulls,
    ListRequests,
    PullModel,
)
from penstock.api.routes.ui.portable_chats import ExportChat, ImportChat
from penstock.api.services import Services

MESSAGE: Final = "/chats/{chat_id}/messages/{message_id}"
Endpoint = Callable[[Services], ASGIApp]

# "METHOD path under /ui/api" -> endpoint. Fixed paths precede the patterns that also match them.
ROUTES: Final[dict[str, Endpoint]] = {
    "GET /chats": ListChats,
    "POST /chats": CreateChat,
    "POST /chats/import": ImportChat,
    "GET /chats/{chat_id}": GetChat,
    "PATCH /chats/{chat_id}": ChangeChat,
    "DELETE /chats/{chat_id}": DeleteChat,
    "GET /chats/{chat_id}/export": ExportChat,
    "POST /chats/{chat_id}/messages": SendMessage,
    f"PATCH {MESSAGE}": EditMessage,
    f"POST {MESSAGE}/answer": AnswerAgain,
    f"POST {MESSAGE}/stop": StopAnswer,
    f"GET {MESSAGE}/events": FollowMessage,
    "POST /attachments": UploadAttachment,
    "GET /attachments/{attachment_id}": GetAttachment,
    "GET /info": GetServerInfo,
    "POST /models/pull": PullModel,
    "GET /models/pulls": ListPulls,
    "DELETE /models/pulls/{pull_id}": CancelPull,
    "GET /models/catalogue": lambda services: ListCatalogue(),
    "GET /requests": ListRequests,
}


def _operation(route: str, endpoint: Endpoint) -> Operation:
    method, path = route.split(" ")
    return Operation(
        f"{method} /ui/api{path}",
        lambda services: SameOrigin(endpoint(services)),
        id=route,
        tag="Web page",
        summary=endpoint.__doc__ or "",
    )


OPERATIONS: Final = tuple(_operation(route, endpoint) for route, endpoint in ROUTES.items())
