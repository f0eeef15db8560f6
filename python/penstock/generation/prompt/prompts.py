"""Builds the prompts of requests without blocking the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.dialog import GenerateRequest
from penstock.engine.protocol import Engine
from penstock.generation.media.loader import MediaLoader
from penstock.generation.media.readable import with_readable_media, without_failed_media
from penstock.generation.prompt.builder import NO_MEDIA, PromptBuilder
from penstock.generation.prompt.context_budget import Prompt
from penstock.generation.prompt.texts import prompt_chars
from penstock.models.media.prepared import MediaKind
from penstock.text import ChatTemplate, Tokenizer

LONG_PROMPT_CHARS: Final = 8192
"""Longer prompts (about 2 ms of work) are rendered and tokenized in a thread."""


class Prompts:
    """Builds the prompts of requests to one model.

    - `template`: the chat template, None if the model has none.
    - `media`: loads the media of requests, None for a model that reads text only.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        media: MediaLoader | None,
    ) -> None:
        self._engine = engine
        self._media = media
        processor = None if media is None else media.processor
        self._builder = PromptBuilder(tokenizer, template, processor)

    @property
    def media_kinds(self) -> tuple[MediaKind, ...]:
        """The kinds of media that the model reads."""
        return () if self._media is None else self._engine.info.media_kinds

    async def build(self, request: GenerateRequest, max_model_len: int) -> tuple[Prompt, ...]:
        """Return the prompts of a request, after its media have been loaded. Raises the errors of
        `PromptBuilder.build`, `with_readable_media` and `MediaLoader.load`."""
        request = with_readable_media(request, self.media_kinds)
        media = NO_MEDIA
        if self._media is not None:
            loaded = await self._media.load_usable(request)
            request, media = without_failed_media(request, loaded.failures), loaded.items
        arguments = (request, max_model_len, self._engine.info.vocab_size, media)
        if media or prompt_chars(request) > LONG_PROMPT_CHARS:
            return await asyncio.to_thread(self._builder.build, *arguments)
        return self._builder.build(*arguments)
