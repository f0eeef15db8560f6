"""Turns the frames of a streamed chat completion into the events of an answer."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Literal, cast

import orjson

from penstock.dialog import (
    ApprovalRequired,
    CustomActivity,
    Event,
    FileProduced,
    PartEnded,
    PartStarted,
    ProducedFile,
    PythonActivity,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    SearchActivity,
    SearchHit,
    ServerTool,
    ShellActivity,
    Text,
    TextDelta,
    ToolActivity,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
    TurnEnded,
    Usage,
)
from penstock.dialog.events import Finish
from penstock.dialog.server_tools import ToolKind, ToolSource
from penstock.dialog.tool_names import BUILT_IN

DONE: Final = b"[DONE]"
_BUILT_IN: Final = {tool.name: tool for tool in BUILT_IN}
_KIND_OF_TYPE: Final[dict[str, ToolKind]] = {
    "code_execution": "code_execution",
    "shell": "shell",
    "web_search": "web_search",
}


async def sse_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield (event name, data) of each SSE frame. The name is "" for a frame without one. Only
    line feeds end a line, because texts in JSON may have other line separators."""
    rest = b""
    async for chunk in chunks:
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            lines = [line.partition(b":") for line in frame.split(b"\n")]
            name = b"".join(value for field, _, value in lines if field == b"event")
            data = b"".join(value for field, _, value in lines if field == b"data")
            if data:
                yield name.strip().decode(), data.strip()


class CompletionEvents:
    """The events of one streamed chat completion with one choice.

    Frames show neither the ids of calls nor the results as the model sees them, so both are made
    up here: the results from the output that people see.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._started = False
        self._next_part = 0
        self._open: tuple[Literal["text", "reasoning"], int, list[str]] | None = None
        self._calls: list[tuple[int, ToolCall, ServerTool, ToolActivity]] = []
        self._finish: Finish = "stop"
        self._usage = Usage()

    def add(self, name: str, data: bytes) -> Iterator[Event]:
        """Yield the events of one frame."""
        if self.has_ended:
            return
        if data == DONE:
            yield from self._end()
            return
        frame = orjson.loads(data)
        if "error" in frame:
            self.has_ended = True
            yield _failure(frame["error"])
            return
        if not self._started:
            self._started = True
            yield RunStarted(frame.get("model") or "", frame.get("created") or 0, 0)
        match name:
            case "agentic_tool_call_progress":
                yield from self._tool(frame)
            case "agentic_tool_approval_required":
                yield _approval(frame)
            case "file_produced":
                yield FileProduced(0, _file(frame))
            case _:
                yield from self._chunk(frame)

    def _chunk(self, frame: dict[str, Any]) -> Iterator[Event]:
        for choice in frame.get("choices") or ():
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content"):
                yield from self._text("reasoning", thought)
            if text := delta.get("content"):
                yield from self._text("text", text)
            self._finish = choice.get("finish_reason") or self._finish
        if usage := frame.get("usage"):
            self._usage = _usage(usage)

    def _text(self, kind: Literal["text", "reasoning"], text: str) -> Iterator[Event]:
        if self._open is None or self._open[0] != kind:
            yield from self._close_part()
            self._open = kind, self._take_part(), []
            yield PartStarted(0, self._open[1], kind)
        _, part, texts = self._open
        texts.append(text)
        delta = TextDelta if kind == "text" else ReasoningDelta
        yield delta(0, part, text)

    def _close_part(self) -> Iterator[Event]:
        if self._open is not None:
            kind, part, texts = self._open
            value = Text if kind == "text" else Reasoning
            self._open = None
            yield PartEnded(0, part, value("".join(texts)))

    def _take_part(self) -> int:
        self._next_part += 1
        return self._next_part - 1

    def _tool(self, frame: dict[str, Any]) -> Iterator[Event]:
        yield from self._close_part()
        tool = _tool_of(frame["tool_name"], frame["data"])
        if frame["phase"] == "calling":
            part, round = self._take_part(), frame["round"]
            activity = _activity(frame["data"], None)
            call = ToolCall(f"call_{round}_{part}", tool.name, _arguments(frame["data"]))
            self._calls.append((part, call, tool, activity))
            yield ToolCalling(0, part, round, call, tool, activity)
            return
        waiting = [one for one in self._calls if one[2].name == tool.name]
        if not waiting:
            return
        self._calls.remove(waiting[0])
        part, call, tool, started = waiting[0]
        activity = _activity(frame["data"], started)
        result = ToolResult(call.id, _output(activity), tool.name)
        run = ToolRun(round=frame["round"], call=call, tool=tool, activity=activity, result=result)
        yield ToolCompleted(0, part, run)

    def _end(self) -> Iterator[Event]:
        self.has_ended = True
        yield from self._close_part()
        yield TurnEnded(0, self._finish, self._usage)
        status = "incomplete" if self._finish == "length" else "completed"
        yield RunEnded(cast(Literal["completed", "incomplete"], status), self._usage)


def _failure(error: Any) -> RunFailed:
    fields = error if isinstance(error, dict) else {"message": str(error)}
    return RunFailed(
        status=500,
        kind=str(fields.get("type") or "server_error"),
        code=str(fields.get("code") or "internal_error"),
        message=str(fields.get("message") or "the server failed"),
        field=fields.get("param"),
    )


def _usage(usage: dict[str, Any]) -> Usage:
    return Usage(
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        prompt_time_s=usage.get("total_prompt_time_sec", 0.0),
        completion_time_s=usage.get("total_completion_time_sec", 0.0),
    )


def _tool_of(name: str, data: dict[str, Any]) -> ServerTool:
    known = _BUILT_IN.get(name)
    if known is not None:
        return known
    return ServerTool(name, _KIND_OF_TYPE.get(data["tool_type"], "custom"), "user", name)


def _arguments(data: dict[str, Any]) -> str:
    given = data.get("arguments")
    if given is None:
        given = {key: value for key, value in data.items() if key != "tool_type"}
    return given if isinstance(given, str) else orjson.dumps(given).decode()


def _activity(data: dict[str, Any], started: ToolActivity | None) -> ToolActivity:
    """Return the activity of a call that starts (`started` None) or is complete."""
    done = "" if started is None else data.get("status") or "success"
    match data["tool_type"]:
        case "code_execution":
            exception = data.get("exception")
            return PythonActivity(
                code=started.code if isinstance(started, PythonActivity) else data["code"],
                status="error" if exception and started is not None else done,
                stdout=data.get("stdout") or "",
                stderr=data.get("stderr") or "",
                exception=exception,
                result=data.get("result"),
                images=tuple(b64decode(image) for image in data.get("images_base64") or ()),
            )
        case "shell":
            return ShellActivity(
                commands=tuple(data["commands"]),
                status=done,
                stdout=data.get("stdout") or "",
                stderr=data.get("stderr") or "",
                exit_code=data.get("exit_code"),
                timed_out=bool(data.get("timed_out")),
            )
        case "web_search":
            hits = tuple(SearchHit(title=site, url="") for site in data.get("sources") or ())
            query = started.query if isinstance(started, SearchActivity) else data.get("query")
            return SearchActivity(query=query, status=done, hits=hits)
        case _:
            before = started.arguments if isinstance(started, CustomActivity) else _arguments(data)
            content = data.get("content") or ""
            return CustomActivity(arguments=before, status=done, content=content)


def _output(activity: ToolActivity) -> str:
    """Return the output of a call as text for later requests."""
    match activity:
        case PythonActivity() as done:
            texts = [done.stdout, done.stderr, done.result or "", done.exception or ""]
        case ShellActivity() as done:
            texts = [done.stdout, done.stderr]
        case SearchActivity() as done:
            texts = [hit.title for hit in done.hits]
        case CustomActivity() as done:
            texts = [done.content]
    return "\n".join(text for text in texts if text)


def _approval(frame: dict[str, Any]) -> ApprovalRequired:
    given = frame["tool"]
    kind, source = cast(ToolKind, given["kind"]), cast(ToolSource, given["source"])
    return ApprovalRequired(
        choice=0,
        part=0,
        approval_id=frame["approval_id"],
        session=frame["session_id"],
        round=frame["round"],
        tool=ServerTool(given["label"], kind, source, given["label"]),
        arguments=orjson.dumps(frame["arguments"]).decode(),
    )


def _file(frame: dict[str, Any]) -> ProducedFile:
    source, data = frame.get("source") or {}, frame.get("data_base64")
    return ProducedFile(
        id=frame["id"],
        name=frame["name"],
        format=frame["format"],
        mime_type=frame["mime_type"],
        size_bytes=frame["bytes"],
        created_at=frame["created_at"],
        tool=source.get("tool", ""),
        round=source.get("round", 0),
        turn=source.get("turn", 0),
        container_id="",
        text=frame.get("text"),
        data=None if data is None else b64decode(data),
        preview=frame.get("preview"),
        code=frame.get("code"),
        message=frame.get("message"),
    )
