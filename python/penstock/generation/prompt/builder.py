"""Builds the prompt of a request: token ids that fit the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest, Message, Part, Text
from penstock.generation.media.loader import LoadedMedia
from penstock.generation.media.placement import MediaPlacement, PlacedPrompt
from penstock.generation.prompt.context_budget import ContextBudget, Prompt
from penstock.generation.prompt.texts import shown_tools, texts_of
from penstock.models.media.processor import MediaProcessor
from penstock.text import ChatTemplate, Tokenizer
from penstock.text.fim import fim_tokens_of
from penstock.text.prompt_length_check import exceeds_room, needs_length_check, overfull_end

SYSTEM_ROLES: Final = ("system", "developer")
NO_MEDIA: Final[LoadedMedia] = {}


class PromptBuilder:
    """Renders and tokenizes requests for one model. Thread-safe.

    - `template`: the chat template, None if the model has none.
    - `processor`: places media, None for a model that reads text only.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        processor: MediaProcessor | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._template = template
        self._fill_in = fim_tokens_of(tokenizer.added_tokens)

    def build(
        self,
        request: GenerateRequest,
        max_model_len: int,
        vocab_size: int,
        loaded: LoadedMedia = NO_MEDIA,
    ) -> tuple[Prompt, ...]:
        """Return one tokenized prompt for the messages or for each prompt of a request. `loaded`:
        the media of the messages.

        Raises ContextLengthExceeded, and InvalidRequest for invalid token ids, an unsupported
        feature, or messages that the template cannot render.
        """
        budget = ContextBudget(request, max_model_len)
        if request.messages is not None:
            placement = MediaPlacement(self._tokenizer, self._processor, loaded)
            placed = self._of_messages(request, request.messages, budget, placement)
            media = tuple(item.for_engine() for item in placed.items)
            positions = placement.rope_positions(placed)
            whole = budget.prompt(placed.token_ids)
            return (replace(whole, media=media, rope_positions=positions),)
        given = request.prompts if request.prompt is None else (request.prompt,)
        for prompt in given:
            if not isinstance(prompt, str):
                _check_ids(prompt, vocab_size)
        return tuple(self._completion(request, prompt, budget) for prompt in given)

    def _completion(
        self, request: GenerateRequest, given: str | tuple[int, ...], budget: ContextBudget
    ) -> Prompt:
        echo = ""
        if request.echo:
            echo = given if isinstance(given, str) else self._tokenizer.decode(given)
        if request.suffix:
            return replace(self._around_gap(given, request.suffix, budget), echo=echo)
        if not isinstance(given, str):
            return replace(budget.prompt(budget.cut(list(given))), echo=echo)
        prompt = budget.prompt(self._of_text(given, budget))
        spelled, lead = self._tokenizer.control_ids, len(self._tokenizer.before)
        return replace(prompt, echo=echo, echoed_control=spelled, lead=lead)

    def _around_gap(
        self, given: str | tuple[int, ...], suffix: str, budget: ContextBudget
    ) -> Prompt:
        """Return a FIM prompt: the text before and after the gap, with the model's FIM tokens.

        If the prompt is too long and may be truncated, the start of the text before the gap is
        dropped. Raises InvalidRequest if the model has no FIM tokens, and ContextLengthExceeded.
        """
        marks = self._fill_in
        if marks is None:
            raise InvalidRequest(
                "suffix: this model has no tokens for filling in; send a prompt without a suffix",
                field="suffix",
                code="unsupported_value",
            )
        texts = [suffix, given] if isinstance(given, str) else [suffix]
        if self._cannot_fit(texts, budget):
            raise budget.exceeded(None)
        after = self._tokenizer.encode(suffix)
        before = self._tokenizer.encode(given) if isinstance(given, str) else list(given)
        start = self._tokenizer.before
        ids = [*start, *marks.tokens(before, after)]
        if not budget.fits(ids):
            excess = len(ids) - budget.room
            if not budget.truncate or excess > len(before):
                raise budget.exceeded(ids)
            ids = [*start, *marks.tokens(before[excess:], after)]
        return replace(budget.prompt(ids), stop_ids=marks.stop_ids)

    def _of_text(self, text: str, budget: ContextBudget) -> list[int]:
        if budget.truncate:
            text = self._end(text, budget)
        elif self._cannot_fit((text,), budget):
            raise budget.exceeded(None)
        ids = self._tokenizer.encode(text, add_special=True)
        if not ids:  # an empty prompt: the model needs at least one token
            start = self._tokenizer.bos_id
            ids = [start] if start is not None else []
        return budget.cut(ids, lead=len(self._tokenizer.before))

    def _cannot_fit(self, texts: Sequence[str], budget: ContextBudget) -> bool:
        """Whether it is certain that texts cannot fit. Tokenizes only a part of long texts."""
        chars = sum(map(len, texts))
        if budget.cannot_fit(chars):
            return True
        return needs_length_check(chars, budget.room) and exceeds_room(
            self._count, texts, budget.room
        )

    def _end(self, text: str, budget: ContextBudget) -> str:
        """Return the end of a text to be truncated, with more tokens than fit, or the whole
        text."""
        text = text[-budget.most_chars :]
        if needs_length_check(len(text), budget.room):
            return overfull_end(self._count, text, budget.room)
        return text

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def _of_messages(
        self,
        request: GenerateRequest,
        messages: Sequence[Message],
        budget: ContextBudget,
        placement: MediaPlacement,
    ) -> PlacedPrompt:
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template; use completions with a prompt",
                field="messages",
                code="no_chat_template",
            )
        prompt = self._render(request, messages, budget, placement)
        if prompt is not None and budget.fits(prompt.token_ids):
            return prompt
        if not budget.truncate:
            raise budget.exceeded(None if prompt is None else prompt.token_ids)
        return self._of_newest(request, messages, budget, placement)

    def _render(
        self,
        request: GenerateRequest,
        messages: Sequence[Message],
        budget: ContextBudget,
        placement: MediaPlacement,
    ) -> PlacedPrompt | None:
        """Return the prompt of a conversation, or None if it is certain that it cannot fit."""
        assert self._template is not None
        tools = shown_tools(request)
        texts = texts_of(messages, tools)
        if budget.cannot_fit(texts.chars + len(request.answer_prefix)) or self._cannot_fit(
            texts.shown, budget
        ):
            return None
        chat = self._template.encode(
            self._tokenizer,
            messages,
            tools=tools,
            reasoning=request.reasoning,
            answer_prefix=request.answer_prefix,
        )
        return placement.place(chat, messages)

    def _of_newest(
        self,
        request: GenerateRequest,
        messages: Sequence[Message],
        budget: ContextBudget,
        placement: MediaPlacement,
    ) -> PlacedPrompt:
        """Return the prompt of the newest turns that fit. System messages are always kept.

        A turn starts at a user message, and is dropped with its media. If the last turn alone is
        too long, only the end of its user message's text is kept, with all its media. Raises
        ContextLengthExceeded.
        """
        starts = [i for i, m in enumerate(messages) if m.role == "user"] or [len(messages) - 1]
        low, high = 0, len(starts) - 1
        best: PlacedPrompt | None = None
        while low <= high:
            middle = (low + high) // 2
            prompt = self._render(request, _since(messages, starts[middle]), budget, placement)
            if prompt is not None and budget.fits(prompt.token_ids):
                best, high = prompt, middle - 1
            else:
                low = middle + 1
        return best or self._of_last_end(request, messages, starts[-1], budget, placement)

    def _of_last_end(
        self,
        request: GenerateRequest,
        messages: Sequence[Message],
        start: int,
        budget: ContextBudget,
        placement: MediaPlacement,
    ) -> PlacedPrompt:
        if messages[start].role in SYSTEM_ROLES:
            raise budget.exceeded(None)
        kept = _since(messages, start)
        at = next(i for i, m in enumerate(kept) if m is messages[start])
        text = "\n".join(part.text for part in kept[at].parts if isinstance(part, Text))
        words = self._tokenizer.encode(self._end(text, budget))
        keep = min(len(words), budget.room)
        while keep > 0:
            data = b"".join(map(self._tokenizer.token_bytes, words[-keep:]))
            end = data.decode("utf-8", "ignore")
            shorter = Message(kept[at].role, _with_end(kept[at].parts, end), kept[at].name)
            prompt = self._render(
                request, [*kept[:at], shorter, *kept[at + 1 :]], budget, placement
            )
            if prompt is not None and budget.fits(prompt.token_ids):
                return prompt
            excess = len(prompt.token_ids) - budget.room if prompt is not None else keep // 2
            keep -= max(excess, 1)
        raise budget.exceeded(None)


def _since(messages: Sequence[Message], start: int) -> list[Message]:
    """Return the messages from index `start` on, and all system messages before them."""
    return [
        message
        for index, message in enumerate(messages)
        if index >= start or message.role in SYSTEM_ROLES
    ]


def _with_end(parts: Sequence[Part], end: str) -> tuple[Part, ...]:
    """Return the parts of a message in which only `end`, the end of all text, is left of it."""
    left = len(end)
    kept: list[Part] = []
    for part in reversed(parts):
        if isinstance(part, Text):
            text = part.text[-left:] if left > 0 else ""
            left -= len(part.text) + 1  # the line break between two texts
            part = Text(text)
        if not isinstance(part, Text) or part.text:
            kept.append(part)
    return tuple(reversed(kept))


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    if not ids:
        raise InvalidRequest("the prompt must not be empty", field="prompt")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidRequest(
            f"prompt holds token ids outside 0 to {vocab_size - 1}", field="prompt"
        )
