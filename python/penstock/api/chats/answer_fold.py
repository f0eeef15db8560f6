"""Folds the events of a run into the blocks of an answer, and reports each change."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.api.codecs.agent_events import agent_event
from penstock.api.schema.chats import (
    AnswerError,
    ApprovalBlock,
    Attachment,
    Block,
    FileBlock,
    MessageInfo,
    ReasoningBlock,
    TextBlock,
    TokenAlternative,
    TokenChoice,
    ToolBlock,
)
from penstock.dialog import (
    ApprovalRequired,
    Event,
    FileProduced,
    PartEnded,
    PartStarted,
    ProducedFile,
    PythonActivity,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    ToolCalling,
    ToolCompleted,
    ToolRun,
    TurnEnded,
)
from penstock.dialog.events import TokenLogprob, Usage
from penstock.store.chat_records import MessageStatus

IMAGE_FIELDS: Final = ("images_base64", "video_frames_base64")
PNG: Final = "image/png"
DENIED: Final = "denied"
SUCCESS: Final = "success"


@dataclass(frozen=True, slots=True)
class BlockSet:
    """A new block, or a block that was replaced."""

    index: int
    block: Block


@dataclass(frozen=True, slots=True)
class TextAppended:
    """Text that was appended to a block. `tokens`: its tokens, if they were asked for."""

    index: int
    text: str
    tokens: list[TokenChoice] | None = None


Change = BlockSet | TextAppended


class KeepFile(Protocol):
    """Stores a file of the chat and returns its attachment."""

    def __call__(self, name: str, mime_type: str, data: bytes, /) -> Awaitable[Attachment]: ...


class AnswerFold:
    """An answer that is being written.

    `blocks`: the blocks so far; at the start, those of the answer that is continued.
    `info`: counts and times so far.
    `status`: "running" until the run has ended.
    `keep`: stores the files and pictures that tools make.
    """

    def __init__(
        self,
        keep: KeepFile,
        blocks: list[Block] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks: list[Block] = blocks or []
        self.info = MessageInfo()
        self.status: MessageStatus = "running"
        self._keep = keep
        self._clock = clock
        self._started = clock()
        self._continues = bool(self.blocks)
        self._parts: dict[int, int] = {}  # part index of the run -> index of its block
        self._reasoning_started: dict[int, float] = {}

    @property
    def text(self) -> str:
        """The texts of the answer, for searches."""
        return "\n\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    async def add(self, event: Event) -> list[Change]:
        """Apply an event and return the changes of the blocks."""
        match event:
            case TextDelta():
                return self._append_text(event)
            case ReasoningDelta():
                return self._append_reasoning(event)
            case PartStarted(kind="text" | "reasoning"):
                return self._begin_part(event)
            case PartEnded():
                return self._end_part(event.part)
            case ToolCalling():
                return [self._begin_call(event)]
            case ApprovalRequired():
                return [self._ask(event)]
            case ToolCompleted():
                return await self._complete_call(event)
            case FileProduced():
                return [await self._add_file(event.file)]
            case RunStarted():
                self.info.model = event.model
                self.info.adapter = event.adapter_revision
            case TurnEnded():
                self.info.finish_reason = event.finish
                self._measure(event.usage)
            case RunEnded():
                self.end("stopped" if event.status == "cancelled" else "done")
            case RunFailed():
                self.fail(event.message, event.code)
            case _:
                pass
        return []

    def end(self, status: MessageStatus) -> None:
        """Set the final status."""
        self.status = status
        self.info.seconds = round(self._clock() - self._started, 3)
        for block in self.blocks:
            if isinstance(block, ToolBlock) and block.state == "running":
                block.state = "failed"
            if isinstance(block, ApprovalBlock) and block.decision is None:
                block.decision = "expired"

    def fail(self, message: str, code: str) -> None:
        """End the answer with an error. The text so far stays."""
        self.info.error = AnswerError(message, code)
        self.end("failed")

    def _put(self, block: Block) -> BlockSet:
        self.blocks.append(block)
        return BlockSet(len(self.blocks) - 1, block)

    def _begin_part(self, event: PartStarted) -> list[Change]:
        if event.kind == "text" and self._continues:
            self._continues = False
            last = len(self.blocks) - 1
            if isinstance(self.blocks[last], TextBlock):
                self._parts[event.part] = last
                return []
        block: Block = TextBlock("") if event.kind == "text" else ReasoningBlock("")
        change = self._put(block)
        self._parts[event.part] = change.index
        if event.kind == "reasoning":
            self._reasoning_started[event.part] = self._clock()
        return [change]

    def _append_text(self, event: TextDelta) -> list[Change]:
        self._note_first_token()
        index = self._parts[event.part]
        block = self.blocks[index]
        assert isinstance(block, TextBlock)
        block.text += event.text
        if not event.logprobs:
            return [TextAppended(index, event.text)]
        tokens = [_token(choice) for choice in event.logprobs]
        block.tokens = [*(block.tokens or ()), *tokens]
        return [TextAppended(index, event.text, tokens)]

    def _append_reasoning(self, event: ReasoningDelta) -> list[Change]:
        self._note_first_token()
        index = self._parts[event.part]
        block = self.blocks[index]
        assert isinstance(block, ReasoningBlock)
        block.text += event.text
        return [TextAppended(index, event.text)]

    def _end_part(self, part: int) -> list[Change]:
        started = self._reasoning_started.pop(part, None)
        if started is None:
            return []
        index = self._parts[part]
        block = self.blocks[index]
        assert isinstance(block, ReasoningBlock)
        block.seconds = round(self._clock() - started, 1)
        return [BlockSet(index, block)]

    def _begin_call(self, event: ToolCalling) -> BlockSet:
        tool = event.tool
        block = ToolBlock(
            call_id=event.call.id,
            tool=tool.kind,
            name=tool.name,
            label=tool.label,
            arguments=event.call.arguments,
            result=_shown_result(event),
        )
        return self._put(block)

    def _ask(self, event: ApprovalRequired) -> BlockSet:
        calls = [block for block in self.blocks if isinstance(block, ToolBlock)]
        tool = event.tool
        block = ApprovalBlock(
            approval_id=event.approval_id,
            call_id=calls[-1].call_id,
            tool={"source": tool.source, "kind": tool.kind, "label": tool.label},
            arguments=event.arguments,
        )
        return self._put(block)

    async def _complete_call(self, event: ToolCompleted) -> list[Change]:
        run = event.run
        images = [await self._keep("figure.png", PNG, data) for data in _images(run)]
        changes: list[Change] = []
        for index, block in enumerate(self.blocks):
            if isinstance(block, ToolBlock) and block.call_id == run.call.id:
                failed = run.result.is_error or run.activity.status not in (SUCCESS, "")
                block.state = "failed" if failed else "done"
                block.result = _shown_result(event)
                block.output = run.result.text
                block.images = images
                changes.append(BlockSet(index, block))
            elif isinstance(block, ApprovalBlock) and block.call_id == run.call.id:
                block.decision = "deny" if run.activity.status == DENIED else "approve"
                changes.append(BlockSet(index, block))
        return changes

    async def _add_file(self, file: ProducedFile) -> BlockSet:
        data = file.data if file.text is None else file.text.encode()
        if data is None:
            problem = file.message or "The content of this file was not kept."
            return self._put(FileBlock(file.name, problem=problem))
        kept = await self._keep(file.name, file.mime_type, data)
        return self._put(FileBlock(file.name, kept))

    def _note_first_token(self) -> None:
        if self.info.ttft_s is None:
            self.info.ttft_s = round(self._clock() - self._started, 3)

    def _measure(self, usage: Usage) -> None:
        info = self.info
        info.prompt_tokens = usage.prompt_tokens
        info.cached_tokens = usage.cached_tokens
        info.completion_tokens = usage.completion_tokens
        computed = usage.prompt_tokens - usage.cached_tokens
        info.prompt_tokens_per_s = _rate(computed, usage.prompt_time_s)
        info.tokens_per_s = _rate(usage.completion_tokens - 1, usage.completion_time_s)


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if tokens > 0 and seconds > 0 else None


def _token(choice: TokenLogprob) -> TokenChoice:
    top = [TokenAlternative(_text(data), logprob) for _, data, logprob in choice.top]
    return TokenChoice(_text(choice.token_bytes), choice.logprob, top)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _shown_result(event: ToolCalling | ToolCompleted) -> dict[str, Any]:
    _, progress = agent_event(event)
    data: dict[str, Any] = progress["data"]
    shown = {name: value for name, value in data.items() if name not in IMAGE_FIELDS}
    shown.pop("arguments", None)  # the block has them
    return shown


def _images(run: ToolRun) -> list[bytes]:
    shown = [image.data for image in run.images if image.data is not None]
    figures = run.activity.images if isinstance(run.activity, PythonActivity) else ()
    return [*figures, *(data for data in shown if data not in figures)]
