"""A request's prompt as token ids that fit the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from penstock.text import ChatTemplate, Tokenizer
from penstock.text.fill_in import fill_in_of
from penstock.text.outgrowing import end_that_fills, is_suspicious, outgrows

SYSTEM_ROLES: Final = ("system", "developer")
LONGEST_TOKEN_CHARS: Final = 512
"""No token of a model covers more, so a text that is longer than so many a token cannot fit."""
MARKUP_CHARS: Final = 8
"""What a template writes around a message, at least."""
DEFAULT_ROOM_TOKENS: Final = 512
"""What truncation leaves for the answer where the request has no `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`max_tokens`: what the context leaves for the answer, or less where the request says so.
    `stop_ids`: tokens that end this answer beside those that end any. `echo`: the text of a prompt
    that the answers repeat; `echoed_control`: control tokens that it spells out."""

    token_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    echo: str = ""
    echoed_control: frozenset[int] = frozenset()


class PromptBuilder:
    """Renders and tokenizes requests for one model. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._fill_in = fill_in_of(tokenizer.added_tokens)

    def build(
        self, request: GenerateRequest, context_tokens: int, vocab_size: int
    ) -> tuple[Prompt, ...]:
        """One for each prompt of the request. Raises ContextLengthExceeded, and InvalidRequest for
        what cannot be rendered."""
        fit = _Fit(request, context_tokens)
        if request.messages is not None:
            return (_prompt(request, fit, self._of_messages(request, request.messages, fit)),)
        given = request.prompts
        if request.prompt is not None:
            given = (request.prompt,)
        return tuple(self._completion(request, fit, prompt, vocab_size) for prompt in given)

    def _completion(
        self, request: GenerateRequest, fit: _Fit, given: str | tuple[int, ...], vocab_size: int
    ) -> Prompt:
        echo = ""
        if request.echo:
            echo = given if isinstance(given, str) else self._decoded(given, vocab_size)
        if request.suffix:
            return self._around_gap(request, fit, given, vocab_size, echo)
        if isinstance(given, str):
            ids, spelled = self._of_text(given, fit), self._tokenizer.control_ids
        else:
            ids, spelled = fit.cut(_checked_ids(given, vocab_size)), frozenset[int]()
        return _prompt(request, fit, ids, echo=echo, echoed_control=spelled)

    def _decoded(self, ids: tuple[int, ...], vocab_size: int) -> str:
        return self._tokenizer.decode(_checked_ids(ids, vocab_size))

    def _around_gap(
        self,
        request: GenerateRequest,
        fit: _Fit,
        given: str | tuple[int, ...],
        vocab_size: int,
        echo: str,
    ) -> Prompt:
        """Text before and after a gap, after what stands before any text. Of what is too long, the
        start of the first is dropped."""
        marks = self._fill_in
        if marks is None:
            raise InvalidRequest(
                "suffix: this model has no tokens for filling in; send a prompt without a suffix",
                field="suffix",
                code="unsupported_value",
            )
        suffix = request.suffix or ""
        texts = [suffix, given] if isinstance(given, str) else [suffix]
        if self._hopeless(texts, fit):
            raise fit.exceeded(None)
        after = self._tokenizer.encode(suffix)
        if isinstance(given, str):
            before = self._tokenizer.encode(given)
        else:
            before = _checked_ids(given, vocab_size)
        start = self._tokenizer.before
        ids = [*start, *marks.tokens(before, after)]
        if not fit.fits(ids):
            excess = len(ids) - fit.room
            if not fit.truncate or excess > len(before):
                raise fit.exceeded(ids)
            ids = [*start, *marks.tokens(before[excess:], after)]
        return _prompt(request, fit, ids, marks.stop_ids, echo)

    def _of_text(self, text: str, fit: _Fit) -> list[int]:
        if fit.truncate:
            text = self._end(text, fit)
        elif self._hopeless((text,), fit):
            raise fit.exceeded(None)
        ids = self._tokenizer.encode(text, add_special=True)
        if not ids:  # an empty prompt of a model that wants no BOS: still something to go on from
            start = self._tokenizer.bos_id
            ids = [start] if start is not None else []
        if not ids:
            raise InvalidRequest("the prompt must not be empty", field="prompt")
        return fit.cut(ids)

    def _hopeless(self, texts: Sequence[str], fit: _Fit) -> bool:
        """Whether texts cannot fit, as far as that can be told without tokenizing all of them."""
        chars = sum(map(len, texts))
        if fit.hopeless(chars):
            return True
        return is_suspicious(chars, fit.room) and outgrows(self._count, texts, fit.room)

    def _end(self, text: str, fit: _Fit) -> str:
        """The end of a text that may be truncated, more than there is room for."""
        text = text[-fit.most_chars :]
        return (
            end_that_fills(self._count, text, fit.room)
            if is_suspicious(len(text), fit.room)
            else text
        )

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def _of_messages(
        self, request: GenerateRequest, messages: Sequence[Message], fit: _Fit
    ) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template; use completions with a prompt",
                field="messages",
                code="no_chat_template",
            )
        ids = self._render(request, messages, fit)
        if ids is not None and fit.fits(ids):
            return ids
        if not fit.truncate:
            raise fit.exceeded(ids)
        return self._of_newest(request, messages, fit)

    def _render(
        self, request: GenerateRequest, messages: Sequence[Message], fit: _Fit
    ) -> list[int] | None:
        """Token ids; None where the text is so long that it cannot fit."""
        assert self._template is not None
        tools = _shown_tools(request)
        said = [text for message in messages for text in _said(message)]
        said.extend(text for tool in tools for text in _tool_texts(tool))
        all_chars = sum(map(_chars, messages)) + len(request.begun)
        if fit.hopeless(all_chars) or self._hopeless(said, fit):
            return None
        return self._template.encode(
            self._tokenizer,
            messages,
            tools=tools,
            reasoning=request.reasoning,
            begun=request.begun,
        )

    def _of_newest(
        self, request: GenerateRequest, messages: Sequence[Message], fit: _Fit
    ) -> list[int]:
        """Drop the oldest turns until the rest fits: whole ones, each from a user's message on,
        never a system message. Of a last turn that is too long itself the end is kept."""
        starts = [i for i, m in enumerate(messages) if m.role == "user"] or [len(messages) - 1]
        low, high = 0, len(starts) - 1
        best: list[int] | None = None
        while low <= high:
            middle = (low + high) // 2
            ids = self._render(request, _since(messages, starts[middle]), fit)
            if ids is not None and fit.fits(ids):
                best, high = ids, middle - 1
            else:
                low = middle + 1
        return best or self._of_last_end(request, messages, starts[-1], fit)

    def _of_last_end(
        self, request: GenerateRequest, messages: Sequence[Message], start: int, fit: _Fit
    ) -> list[int]:
        if messages[start].role in SYSTEM_ROLES:
            raise fit.exceeded(None)
        kept = _since(messages, start)
        at = next(i for i, m in enumerate(kept) if m is messages[start])
        text = "\n".join(part.text for part in kept[at].parts if isinstance(part, Text))
        words = self._tokenizer.encode(self._end(text, fit))
        keep = min(len(words), fit.room)
        while keep > 0:
            data = b"".join(map(self._tokenizer.token_bytes, words[-keep:]))
            end = data.decode("utf-8", "ignore")
            others = tuple(part for part in kept[at].parts if not isinstance(part, Text))
            shorter = Message(kept[at].role, (Text(end), *others), kept[at].name)
            ids = self._render(request, [*kept[:at], shorter, *kept[at + 1 :]], fit)
            if ids is not None and fit.fits(ids):
                return ids
            excess = len(ids) - fit.room if ids is not None else keep // 2
            keep -= max(excess, 1)
        raise fit.exceeded(None)


class _Fit:
    """How much of the context the prompt of one request may take."""

    def __init__(self, request: GenerateRequest, context_tokens: int) -> None:
        self.truncate = request.limits.truncate
        self.most_chars = context_tokens * LONGEST_TOKEN_CHARS
        self.field = "messages" if request.messages is not None else "prompt"
        self.context_tokens = context_tokens
        wanted = request.limits.max_tokens
        self.least = 1 if wanted is None else min(wanted, 1)
        if self.truncate:
            most = DEFAULT_ROOM_TOKENS if wanted is None else wanted
            self.room = context_tokens - min(most, context_tokens // 2)
        else:
            self.room = context_tokens - self.least

    def hopeless(self, chars: int) -> bool:
        return chars > self.most_chars

    def fits(self, ids: Sequence[int]) -> bool:
        return len(ids) <= self.room

    def cut(self, ids: list[int]) -> list[int]:
        """The end of a prompt that may be truncated; raises ContextLengthExceeded otherwise."""
        if self.fits(ids):
            return ids
        if not self.truncate:
            raise self.exceeded(ids)
        return ids[-self.room :]

    def exceeded(self, ids: Sequence[int] | None) -> ContextLengthExceeded:
        """In the words by which the vendors' own agents know that they must shorten it."""
        most = self.context_tokens - self.least
        tokens = str(len(ids)) if ids is not None else f"over {self.context_tokens}"
        return ContextLengthExceeded(
            f"prompt is too long: {tokens} tokens > {most} maximum; shorten `{self.field}`: this"
            f" model's maximum context length is {self.context_tokens} tokens, with an answer of at"
            f" least {self.least}",
            field=self.field,
        )


def _prompt(
    request: GenerateRequest,
    fit: _Fit,
    ids: Sequence[int],
    stop_ids: frozenset[int] = frozenset(),
    echo: str = "",
    echoed_control: frozenset[int] = frozenset(),
) -> Prompt:
    wanted = request.limits.max_tokens
    left = fit.context_tokens - len(ids)
    most = left if wanted is None else min(wanted, left)
    return Prompt(tuple(ids), most, stop_ids, echo, echoed_control)


def _since(messages: Sequence[Message], start: int) -> list[Message]:
    """The system messages, and all others from `start` on."""
    return [
        message
        for index, message in enumerate(messages)
        if index >= start or message.role in SYSTEM_ROLES
    ]


def _checked_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    if not ids:
        raise InvalidRequest("the prompt must not be empty", field="prompt")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidRequest(
            f"prompt holds token ids outside 0 to {vocab_size - 1}", field="prompt"
        )
    return list(ids)


def _shown_tools(request: GenerateRequest) -> tuple[FunctionTool, ...]:
    return request.tools if request.tool_policy.mode != "none" else ()


def _said(message: Message) -> Iterator[str]:
    """The texts that any template shows; reasoning is often left out."""
    for part in message.parts:
        match part:
            case Text() | ToolResult():
                yield part.text
            case ToolCall():
                yield from (part.name, part.arguments)


def _tool_texts(tool: FunctionTool) -> Iterator[str]:
    open_values: list[Any] = [tool.name, tool.description, tool.parameters]
    while open_values:
        item = open_values.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            open_values.extend(item)
            open_values.extend(item.values())
        elif isinstance(item, list):
            open_values.extend(item)


def _chars(message: Message) -> int:
    total = MARKUP_CHARS + len(message.parts)
    for part in message.parts:
        match part:
            case Text() | Reasoning() | ToolResult():
                total += len(part.text)
            case ToolCall():
                total += len(part.name) + len(part.arguments)
    return total


def prompt_chars(request: GenerateRequest) -> int:
    """About how much text there is to render and tokenize."""
    if request.messages is not None:
        tools = sum(len(text) for tool in _shown_tools(request) for text in _tool_texts(tool))
        return sum(map(_chars, request.messages)) + len(request.begun) + tools
    given = (*(request.prompts or (request.prompt,)), request.suffix)
    return sum(len(prompt) for prompt in given if isinstance(prompt, str))
