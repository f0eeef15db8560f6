"""The service's own fields of chat and messages: sessions, rounds, output files, permissions."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from penstock.api.codecs.request_fields.fields import Fields
from penstock.api.codecs.request_fields.media import MAX_ID_CHARS, decode_file_name
from penstock.api.codecs.request_fields.sampling import decode_limits
from penstock.dialog import Limits, Permission, Permissions, RequestedFile

PERMISSIONS: Final = ("auto", "ask", "deny")
MAX_OUTPUT_FILES: Final = 64


def decode_permissions(fields: Fields, stream: bool) -> Permissions:
    """How far the request tightens what tools may do. `ask` needs a stream to ask in."""
    code = cast("Permission | None", fields.choice("code_execution_permission", PERMISSIONS))
    agent = cast("Permission | None", fields.choice("agent_permission", PERMISSIONS))
    for key, value in (("agent_permission", agent), ("code_execution_permission", code)):
        if value == "ask" and not stream:
            fields.refuse(key, '"ask" requires `stream: true` over HTTP')
    return Permissions(agent, code)


def decode_run_limits(fields: Fields) -> Limits:
    """The limits of an answer, and `max_tool_rounds` of the run around it."""
    rounds = fields.integer("max_tool_rounds", 0)
    return msgspec.structs.replace(decode_limits(fields), max_rounds=rounds)


def decode_session(fields: Fields) -> str | None:
    """The id of the session that goes on; an empty one is none."""
    session = fields.string("session_id")
    if session is not None and len(session) > MAX_ID_CHARS:
        fields.refuse("session_id", f"may have at most {MAX_ID_CHARS} characters")
    if session is not None and not session.isprintable():
        fields.refuse("session_id", "must be printable characters")
    return session or None


def decode_requested_files(fields: Fields) -> tuple[RequestedFile, ...]:
    """`files`: what server-side tools must produce."""
    files = tuple(_requested_file(entry) for entry in fields.objects("files"))
    if len(files) > MAX_OUTPUT_FILES:
        fields.refuse("files", f"may hold at most {MAX_OUTPUT_FILES} files, not {len(files)}")
    return files


def _requested_file(entry: Fields) -> RequestedFile:
    entry.required_string("name")
    name = decode_file_name(entry, "name")
    if name is None:
        entry.refuse("name", "must be the name of a file")
    return RequestedFile(name, entry.string("format"), entry.string("description"))
