"""This service's own fields of chat and messages: sessions, rounds, output files, permissions."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.codecs.request_fields.media import base_name
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.sampling import decode_limits
from penstock.api.schema.conversation import ConversationFields
from penstock.api.schema.hosted import RequestedFile as RequestedFileField
from penstock.dialog import Limits, Permissions, RequestedFile


def decode_conversation_limits(body: ConversationFields) -> Limits:
    """Return the limits of an answer."""
    most = {"max_tokens": body.max_tokens, "max_completion_tokens": body.max_completion_tokens}
    return decode_limits(body, most, body.max_tool_rounds, body.truncate_sequence)


def decode_permissions(body: ConversationFields, stream: bool) -> Permissions:
    """Return how far the request tightens what tools may do. `ask` needs a stream to ask in."""
    permissions = Permissions(body.agent_permission, body.code_execution_permission)
    for key in ("agent_permission", "code_execution_permission"):
        if getattr(body, key) == "ask" and not stream:
            refuse(key, '"ask" requires `stream: true` over HTTP')
    return permissions


def decode_session(session: str | None) -> str | None:
    """Return the id of the session to continue; an empty one is none."""
    if session is not None and not session.isprintable():
        refuse("session_id", "must be printable characters")
    return session or None


def decode_requested_files(
    files: Sequence[RequestedFileField] | None,
) -> tuple[RequestedFile, ...]:
    """Return `files`: what server-side tools must produce."""
    found = []
    for index, file in enumerate(files or ()):
        name = base_name(file.name)
        if name is None:
            refuse(f"files[{index}].name", "must be the name of a file")
        found.append(RequestedFile(name, file.format, file.description))
    return tuple(found)
