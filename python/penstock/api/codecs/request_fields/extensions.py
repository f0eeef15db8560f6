"""Decodes Penstock's own fields of chat and messages: session, tool rounds, output files,
permissions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.api.codecs.request_fields.media import base_name
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.codecs.request_fields.sampling import decode_answer_fields, decode_limits
from penstock.api.schema.conversation import ConversationFields
from penstock.api.schema.hosted import RequestedFile as RequestedFileField
from penstock.dialog import Constraint, GenerateRequest, Permissions, RequestedFile


def decode_conversation_fields(
    body: ConversationFields, constraint: Constraint | None
) -> GenerateRequest:
    """Return a request without messages, from the fields that chat and messages have in common."""
    for key in ("agent_permission", "code_execution_permission"):
        if getattr(body, key) == "ask" and not body.stream:
            refuse(key, '"ask" requires `stream: true` over HTTP')
    session = body.session_id or None
    if session is not None and not session.isprintable():
        refuse("session_id", "must be printable characters")
    most = {"max_tokens": body.max_tokens, "max_completion_tokens": body.max_completion_tokens}
    return msgspec.structs.replace(
        decode_answer_fields(body, constraint),
        permissions=Permissions(body.agent_permission, body.code_execution_permission),
        files=decode_requested_files(body.files),
        session=session,
        limits=decode_limits(body, most, body.max_tool_rounds, body.truncate_sequence),
    )


def decode_requested_files(
    files: Sequence[RequestedFileField] | None,
) -> tuple[RequestedFile, ...]:
    """Return the files that `files` asks the server-side tools to produce."""
    found = []
    for index, file in enumerate(files or ()):
        name = base_name(file.name)
        if name is None:
            refuse(f"files[{index}].name", "must be the name of a file")
        found.append(RequestedFile(name, file.format, file.description))
    return tuple(found)
