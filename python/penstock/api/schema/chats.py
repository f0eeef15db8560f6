"""The JSON of the web page's chats, under `/ui/api`. The page's `src/api/types.ts` has the same
types."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

MAX_TITLE_CHARS: Final = 200
MAX_BLOCKS: Final = 4096
Title = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARS)]
Role = Literal["user", "assistant"]
MessageStatus = Literal["running", "done", "stopped", "failed"]
Settings = Annotated[
    dict[str, Any], Meta(description="Fields of chat completion requests, `system` and `tools`.")
]


class Attachment(Struct):
    """A file in a chat. `url`: its content."""

    id: str
    name: str
    mime_type: str
    bytes: int
    url: str


class TokenAlternative(Struct):
    """A token that could have been sampled."""

    text: str
    logprob: float


class TokenChoice(Struct):
    """A sampled token and the likeliest tokens at its position."""

    text: str
    logprob: float | None
    top: list[TokenAlternative]


class TextBlock(Struct, tag="text", tag_field="type"):
    """Text. `tokens`: its tokens, if the request asked for log-probabilities."""

    text: str
    tokens: list[TokenChoice] | None = None


class ReasoningBlock(Struct, tag="reasoning", tag_field="type"):
    """The model's reasoning. `seconds`: how long it took; None while it is written."""

    text: str
    seconds: float | None = None


class AttachmentBlock(Struct, tag="attachment", tag_field="type"):
    """A file that the user sent."""

    attachment: Attachment


class ToolBlock(Struct, tag="tool", tag_field="type", kw_only=True):
    """A call of a tool that the server runs.

    - `tool`: its kind, such as "code_execution"; `name`: the function that the model called.
    - `arguments`: JSON text.
    - `result`: the `data` of the event `agentic_tool_call_progress`, without images.
    - `output`: the result as the model sees it.
    """

    call_id: str
    tool: str
    name: str
    label: str
    arguments: str
    state: Literal["running", "done", "failed"] = "running"
    result: dict[str, Any] = {}
    output: str = ""
    images: list[Attachment] = []


class ApprovalBlock(Struct, tag="approval", tag_field="type", kw_only=True):
    """A question whether a tool call may run. `decision`: None until it is decided."""

    approval_id: str
    call_id: str
    tool: dict[str, str]
    arguments: str
    decision: Literal["approve", "deny", "expired"] | None = None


class FileBlock(Struct, tag="file", tag_field="type"):
    """A file that a tool made; without `attachment` if its content was not kept.

    `problem`: why a requested file was not made.
    """

    name: str
    attachment: Attachment | None = None
    problem: str | None = None


Block = TextBlock | ReasoningBlock | AttachmentBlock | ToolBlock | ApprovalBlock | FileBlock


class AnswerError(Struct):
    """Why an answer failed."""

    message: str
    code: str


class MessageInfo(Struct, omit_defaults=True, kw_only=True):
    """Counts and times of an answer. Speeds in tokens per second."""

    model: str | None = None
    adapter: str | None = None
    finish_reason: str | None = None
    error: AnswerError | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None


class ChatMessage(Struct, kw_only=True):
    """A message of a chat. `parent`: the message before it."""

    id: str
    chat_id: str
    parent: str | None
    role: Role
    created_at: int
    status: MessageStatus
    blocks: list[Block]
    info: MessageInfo


class Chat(Struct, kw_only=True):
    """A chat. `tail`: the last message of the branch that is shown."""

    id: str
    title: str
    created_at: int
    updated_at: int
    tail: str | None
    settings: dict[str, Any]


class NewChat(Struct):
    """The body of `POST /ui/api/chats`."""

    title: Title | None = None
    settings: Settings | None = None


class ChatChange(Struct):
    """The body of `PATCH /ui/api/chats/{chat_id}`. Absent fields do not change."""

    title: Title | None = None
    settings: Settings | None = None
    tail: f.Id | None = None


class SentText(Struct, tag="text", tag_field="type"):
    """Text of the user."""

    text: str


class SentAttachment(Struct, tag="attachment", tag_field="type"):
    """An uploaded file. `id`: the id that the upload returned."""

    id: f.Id


SentBlocks = Annotated[list[SentText | SentAttachment], Meta(min_length=1, max_length=MAX_BLOCKS)]


class NewMessage(Struct):
    """The body of `POST /ui/api/chats/{chat_id}/messages`.

    - `parent`: the message that it follows; None starts a new branch at the root.
    - `answer`: an answer that exists already, such as speech or a picture that the page asked
      another endpoint for. None: the model of the chat writes one.
    """

    blocks: SentBlocks
    parent: f.Id | None = None
    answer: SentBlocks | None = None


class NewAnswer(Struct, rename={"continue_": "continue"}):
    """The body of `POST .../messages/{message_id}/answer`. `continue_`: go on writing an answer
    that has ended, instead of a new answer to a message of the user."""

    continue_: bool | None = None


class EditedMessage(Struct):
    """The body of `PATCH .../messages/{message_id}`: the new text of an answer."""

    text: str
