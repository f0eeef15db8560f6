"""Turns inputs with images and videos into the sequences that an engine embeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from penstock.base.errors import InvalidRequest
from penstock.dialog import ConversationInput, GenerateRequest, Limits, Message, Part, Text
from penstock.engine.protocol import Engine
from penstock.engine.types import MediaItem
from penstock.generation.media.loader import MediaLoader, MediaPart
from penstock.generation.prompt.prompts import Prompts
from penstock.text import ChatTemplate, Tokenizer

EmbeddingInput: TypeAlias = str | tuple[int, ...] | ConversationInput

ONE_IMAGE: Final = "this model embeds images, no texts: an input must be exactly one image"
ONE_TEXT_OR_IMAGE: Final = "this model embeds texts and images apart: an input must be one of them"


@dataclass(frozen=True, slots=True)
class EmbeddedSequence:
    """One sequence of an EmbedRequest."""

    tokens: tuple[int, ...]
    media: tuple[MediaItem, ...] = ()
    rope_positions: bytes = b""


class Conversations(Protocol):
    """Makes sequences of conversations."""

    def form(self, given: EmbeddingInput) -> EmbeddingInput:
        """Return an input in the form in which it is embedded: a text as a conversation, or a
        conversation as its text."""
        ...

    async def sequence(self, given: ConversationInput, truncate: bool) -> EmbeddedSequence:
        """Return the sequence of an input. Raises ServiceError."""
        ...


class RenderedConversations:
    """Renders conversations with the chat template of a decoder. Texts are not rendered."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        media: MediaLoader | None,
    ) -> None:
        self._engine = engine
        self._prompts = Prompts(engine, tokenizer, template, media)

    def form(self, given: EmbeddingInput) -> EmbeddingInput:
        """Return the input unchanged."""
        return given

    async def sequence(self, given: ConversationInput, truncate: bool) -> EmbeddedSequence:
        """Return the sequence of a conversation. If it is too long, its oldest turns are dropped
        with `truncate`. Raises InvalidRequest and ContextLengthExceeded."""
        request = GenerateRequest(
            messages=given.messages,
            part_paths=given.part_paths,
            limits=Limits(max_tokens=0, truncate=truncate),
        )
        (prompt,) = await self._prompts.build(request, self._engine.info.max_model_len)
        return EmbeddedSequence(prompt.token_ids, prompt.media, prompt.rope_positions)


class RenderedInputs:
    """Renders conversations and texts with the chat template of a decoder.

    `system`: the system's message of inputs that have none; "": no message.
    """

    def __init__(self, conversations: RenderedConversations, system: str) -> None:
        self._conversations = conversations
        self._system = system

    def form(self, given: EmbeddingInput) -> EmbeddingInput:
        """Return a text as a message of the user, after the system's message. Token ids stay."""
        if isinstance(given, str):
            given = ConversationInput((Message("user", (Text(given),)),))
        if not isinstance(given, ConversationInput) or not self._system:
            return given
        if given.messages and given.messages[0].role == "system":
            return given
        system = Message("system", (Text(self._system),))
        return replace(given, messages=(system, *given.messages))

    async def sequence(self, given: ConversationInput, truncate: bool) -> EmbeddedSequence:
        """See RenderedConversations."""
        return await self._conversations.sequence(given, truncate)


class SingleItems:
    """Takes inputs of one image or one text, for models whose towers make the vectors.

    `refusal`: the message for any other input.
    """

    def __init__(self, media: MediaLoader, refusal: str) -> None:
        self._media = media
        self._refusal = refusal

    def form(self, given: EmbeddingInput) -> EmbeddingInput:
        """Return a conversation of one text as that text."""
        parts = _parts(given) if isinstance(given, ConversationInput) else []
        match parts:
            case [Text(text=text)] if text:
                return text
        return given

    async def sequence(self, given: ConversationInput, truncate: bool) -> EmbeddedSequence:
        """Return the sequence of an image. Raises InvalidRequest for an input that is not exactly
        one image."""
        parts = _parts(given)
        if len(parts) != 1 or not isinstance(parts[0], MediaPart):
            raise InvalidRequest(self._refusal, field="input", code="unsupported_value")
        request = GenerateRequest(messages=given.messages, part_paths=given.part_paths)
        item = (await self._media.load(request))[parts[0]]
        return EmbeddedSequence((), (MediaItem(item.digest, item.media, 0, 1, ((0, 1),)),))


def _parts(given: ConversationInput) -> list[Part]:
    return [part for message in given.messages for part in message.parts]
