"""Turns inputs with images and videos into the sequences that an engine embeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from penstock.base.errors import InvalidRequest
from penstock.dialog import ConversationInput, GenerateRequest, Limits, Part, Text
from penstock.engine.protocol import Engine
from penstock.engine.types import MediaItem
from penstock.generation.media.loader import MediaLoader, MediaPart
from penstock.generation.prompt.prompts import Prompts
from penstock.text import ChatTemplate, Tokenizer

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

    def text_of(self, given: ConversationInput) -> str | None:
        """Return the text of an input that is embedded as that text alone, None for any other."""
        ...

    async def sequence(self, given: ConversationInput, truncate: bool) -> EmbeddedSequence:
        """Return the sequence of an input. Raises ServiceError."""
        ...


class RenderedConversations:
    """Renders conversations with the chat template of a decoder."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        media: MediaLoader,
    ) -> None:
        self._engine = engine
        self._prompts = Prompts(engine, tokenizer, template, media)

    def text_of(self, given: ConversationInput) -> str | None:
        """Return None, because the chat template writes all texts."""
        return None

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


class SingleItems:
    """Takes inputs of one image or one text, for models whose towers make the vectors.

    `refusal`: the message for any other input.
    """

    def __init__(self, media: MediaLoader, refusal: str) -> None:
        self._media = media
        self._refusal = refusal

    def text_of(self, given: ConversationInput) -> str | None:
        """Return the text of an input that is one text, None for any other."""
        parts = _parts(given)
        return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else None

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
