"""Turns inputs with images and videos into the sequences that an engine embeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.base.errors import InvalidRequest
from penstock.dialog import ConversationInput, GenerateRequest, Limits
from penstock.engine.protocol import Engine
from penstock.engine.types import MediaItem
from penstock.generation.media.loader import MediaLoader, MediaPart
from penstock.generation.prompt.prompts import Prompts
from penstock.text import ChatTemplate, Tokenizer


@dataclass(frozen=True, slots=True)
class EmbeddedSequence:
    """One sequence of an EmbedRequest."""

    tokens: tuple[int, ...]
    media: tuple[MediaItem, ...] = ()
    rope_positions: bytes = b""


class Conversations(Protocol):
    """Makes sequences of conversations."""

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
    """Takes inputs of one image, for models whose towers make the vectors."""

    def __init__(self, media: MediaLoader) -> None:
        self._media = media

    async def sequence(self, given: ConversationInput, truncate: bool) -> EmbeddedSequence:
        """Return the sequence of an image. Raises InvalidRequest for an input that is not exactly
        one image."""
        parts = [part for message in given.messages for part in message.parts]
        if len(parts) != 1 or not isinstance(parts[0], MediaPart):
            raise InvalidRequest(
                "this model embeds images: an input must be exactly one image",
                field="input",
                code="unsupported_value",
            )
        request = GenerateRequest(messages=given.messages, part_paths=given.part_paths)
        item = (await self._media.load(request))[parts[0]]
        return EmbeddedSequence((), (MediaItem(item.digest, item.media, 0, 1, ((0, 1),)),))
