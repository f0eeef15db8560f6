"""The tool that reads a slice of a text file of the session."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.agent.attachments import text_of
from penstock.agent.tools.tool import (
    CallContext,
    ToolOutcome,
    arguments_json,
    decode_arguments,
    function_tool,
)
from penstock.agent.workspace import Workspace
from penstock.base.errors import ServiceError
from penstock.dialog import CustomActivity
from penstock.dialog.tool_names import READ_FILE
from penstock.store.records import StoredFile

MAX_SLICE_CHARS: Final = 65536


class ReadArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`file_id`: the id or the name of a file. `start`, `end`: the slice, in characters; null for
    the beginning and for as much as fits."""

    file_id: str
    start: Annotated[int, msgspec.Meta(ge=0)] | None = None
    end: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ReadFile:
    """Reads a slice of a text file."""

    info = READ_FILE
    reads_only = True

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.function = function_tool(
            self.info.name,
            "Read a text file of this conversation, by its id or name. Returns at most"
            f" {MAX_SLICE_CHARS} characters from `start` up to `end`; read long files in slices.",
            ReadArguments,
        )

    def decode(self, arguments: str) -> ReadArguments:
        return decode_arguments(arguments, ReadArguments)

    def describe(self, arguments: ReadArguments) -> CustomActivity:
        return CustomActivity(arguments=arguments_json(arguments))

    async def run(self, arguments: ReadArguments, context: CallContext) -> ToolOutcome:
        try:
            file = _named(await self._workspace.files(), arguments.file_id)
            if file is None:
                return _failure(arguments, "there is no such file; list the files first")
            data = await self._workspace.read(file.id)
        except ServiceError as error:
            return _failure(arguments, error.message)
        if text_of(data) is None:
            return _failure(arguments, "this file is not text; open it with a program")
        text = data.decode("utf-8-sig", "replace")
        start = min(arguments.start or 0, len(text))
        wanted = len(text) if arguments.end is None else min(arguments.end, len(text))
        end = max(start, min(wanted, start + MAX_SLICE_CHARS))
        result = {
            "file_id": file.id,
            "name": file.name,
            "format": file.format,
            "start": start,
            "end": end,
            "total_chars": len(text),
            "max_slice_chars": MAX_SLICE_CHARS,
            "text": text[start:end],
        }
        shown = f"{file.name}, characters {start} to {end} of {len(text)}"
        activity = CustomActivity(
            arguments=arguments_json(arguments), status="success", content=shown
        )
        return ToolOutcome(activity, result)


def _named(files: list[StoredFile], wanted: str) -> StoredFile | None:
    """Return the file with an id, or the newest file with a name."""
    by_id = next((file for file in files if file.id == wanted), None)
    name = wanted.rpartition("/")[2]
    return by_id or next((file for file in reversed(files) if file.name == name), None)


def _failure(arguments: ReadArguments, message: str) -> ToolOutcome:
    activity = CustomActivity(arguments=arguments_json(arguments), status="error", content=message)
    result = {"file_id": arguments.file_id, "error": message}
    return ToolOutcome(activity, result, is_error=True)
