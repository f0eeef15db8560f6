"""Encodes events as the named SSE events of a messages stream."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.api.codecs.agent_events import agent_frame
from penstock.api.codecs.dialect import AnswerIdentity
from penstock.api.codecs.messages.encode import (
    error_body,
    message_head,
    signature_of,
    stop_fields,
    usage_object,
)
from penstock.api.codecs.messages.part_order import PartEvent, PartOrder
from penstock.api.codecs.messages.server_tool_blocks import ToolUsage, call_block, result_block
from penstock.base.errors import ServiceError
from penstock.dialog import (
    ApprovalRequired,
    ArgumentsDelta,
    Event,
    FileProduced,
    GenerateRequest,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    TurnEnded,
    Usage,
)
from penstock.dialog.fold import FailedRun

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
TEXT_DELTA: Final = b'"text_delta","text":'
INPUT_DELTA: Final = b'"input_json_delta","partial_json":'
DELTA_END: Final = b"}}\n\n"
TEXT_BLOCK: Final = {"type": "text", "text": ""}
THINKING_BLOCK: Final = {"type": "thinking", "thinking": "", "signature": ""}


class MessageStream:
    """Encodes one stream.

    A block starts with its first delta, so that there are no empty blocks. The frames of a tool
    call are held back until the call ends, because clients run every call that they receive; an
    incomplete call is not sent. `message_start` is held back until the next frame, so that an early
    error can still set the HTTP status.

    The named events of server tools are sent at once; content blocks come in the order of their
    parts.
    """

    def __init__(self, identity: AnswerIdentity, request: GenerateRequest) -> None:
        self._identity = identity
        self._session = request.session
        self._index = -1
        self._open: int | None = None
        self._delta_head = b""
        self._stop = stop_fields(None, None)
        self._held = b""
        self._call_frames: list[bytes] = []
        self._order = PartOrder()
        self._tool_usage = ToolUsage()

    def encode(self, event: Event) -> bytes:
        frames = self._frames(event)
        return self._release() + frames if frames and self._held else frames

    def _frames(self, event: Event) -> bytes:
        match event:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta() | PartStarted() | PartEnded():
                return self._in_order(event)
            case ToolCalling() | ToolCompleted():
                return agent_frame(event) + self._in_order(event)
            case ApprovalRequired() | FileProduced():
                return agent_frame(event)
            case TurnEnded():
                self._stop = stop_fields(event.finish, event.stop_sequence)
                return b"".join(map(self._part_frames, self._order.rest()))
            case RunStarted():
                self._session = event.session or self._session
                self._held = self._start(event)
                return b""
            case RunEnded():
                return self._finish(event)
            case RunFailed():
                return self.fail(FailedRun(event))

    def fail(self, error: ServiceError) -> bytes:
        return b"event: error\ndata: %b\n\n" % error_body(error, self._identity.request_id)

    def keep_alive(self) -> bytes:
        return self._release() + PING

    def _release(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _in_order(self, event: PartEvent) -> bytes:
        return b"".join(map(self._part_frames, self._order.release(event)))

    def _part_frames(self, event: PartEvent) -> bytes:
        match event:
            case TextDelta():
                begin = self._begin(event.part, TEXT_BLOCK) if event.text else b""
                return begin + self._delta(TEXT_DELTA, event.text)
            case ReasoningDelta():
                begin = self._begin(event.part, THINKING_BLOCK) if event.text else b""
                return begin + self._delta(b'"thinking_delta","thinking":', event.text)
            case ArgumentsDelta():
                delta = self._delta(INPUT_DELTA, event.text)
                self._call_frames.append(delta)
                return b""
            case PartStarted():
                if event.kind == "tool_call":
                    self._call_frames = [self._begin_call(event)]
                return b""
            case PartEnded(value=ToolCall() as call):
                return self._end_call(event, call)
            case PartEnded():
                return self._end(event)
            case ToolCalling():
                return self._server_call(event)
            case ToolCompleted():
                self._tool_usage.add(event.run)
                return self._block(result_block(event.run))

    def _start(self, event: RunStarted) -> bytes:
        message = {
            **message_head(self._identity, event.model, event.adapter_revision, self._session),
            "content": [],
            **self._stop,
            "usage": usage_object(Usage(prompt_tokens=event.prompt_tokens)),
        }
        return _frame(b"message_start", {"message": message})

    def _begin(self, part: int, block: dict[str, Any]) -> bytes:
        if self._open == part:
            return b""
        self._open = part
        return self._start_block(block)

    def _start_block(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._delta_head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":' % self._index
        )
        fields = {"index": self._index, "content_block": block}
        return _frame(b"content_block_start", fields)

    def _begin_call(self, event: PartStarted) -> bytes:
        call = {"type": "tool_use", "id": event.call_id, "name": event.name}
        return self._begin(event.part, {**call, "input": {}})

    def _delta(self, kind: bytes, text: str) -> bytes:
        if not text:
            return b""
        return self._delta_head + kind + orjson.dumps(text) + DELTA_END

    def _end_call(self, event: PartEnded, call: ToolCall) -> bytes:
        """Return all frames of a tool call; b"" if the call is incomplete."""
        if not call.whole:
            self._open = None
            self._index -= 1
            return b""
        return b"".join(self._call_frames) + self._end(event)

    def _end(self, event: PartEnded) -> bytes:
        if self._open != event.part:
            return b""
        self._open = None
        signature = b""
        if isinstance(event.value, Reasoning):
            text = signature_of(event.value.text)
            signature = self._delta(b'"signature_delta","signature":', text)
        return signature + _frame(b"content_block_stop", {"index": self._index})

    def _server_call(self, event: ToolCalling) -> bytes:
        """Return the frames of a call of a server tool. The input of an MCP tool is in the first
        frame, because clients read it there."""
        block = call_block(event.call, event.tool)
        if block["type"] == "mcp_tool_use" or not block["input"]:
            return self._block(block)
        text = orjson.dumps(block["input"]).decode()
        return self._block({**block, "input": {}}, text)

    def _block(self, block: dict[str, Any], input_json: str = "") -> bytes:
        """Return the frames of a whole block. `input_json`: the JSON text of its input, unless the
        block has the input itself."""
        begin = self._start_block(block)
        delta = self._delta(INPUT_DELTA, input_json)
        return begin + delta + _frame(b"content_block_stop", {"index": self._index})

    def _finish(self, event: RunEnded) -> bytes:
        usage = {**usage_object(event.usage), **self._tool_usage.fields()}
        fields: dict[str, Any] = {"delta": self._stop, "usage": usage}
        if self._session is not None:
            fields["session_id"] = self._session
        return _frame(b"message_delta", fields) + _frame(b"message_stop", {})


def _frame(name: bytes, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": name.decode(), **fields})
    return b"event: %b\ndata: %b\n\n" % (name, data)
