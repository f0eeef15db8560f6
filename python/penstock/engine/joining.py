"""Joins chunks of a request that nobody looks at one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.types import EmbedChunk, TokenChunk, TokenRequest

MOST_HELD: Final = 256
"""So many chunks of an answer are held back at most: what is held is memory."""


def joined(chunks: Sequence[TokenChunk]) -> TokenChunk:
    """Several chunks of a request as one: what the last one says, with the tokens of all."""
    last = chunks[-1]
    tokens = tuple([token for chunk in chunks for token in chunk.tokens])
    prompt = tuple([token for chunk in chunks for token in chunk.prompt])
    begun = next((chunk for chunk in chunks if chunk.tokens), last)
    return TokenChunk(
        id=last.id,
        tokens=tokens,
        step_time_s=last.step_time_s,
        cached_tokens=chunks[0].cached_tokens,
        finish=last.finish,
        error=last.error,
        prompt=prompt,
        begun_s=begun.step_time_s if begun.begun_s is None else begun.begun_s,
    )


class Joiner:
    """Holds back the chunks of requests whose callers want the whole answer (TokenRequest.whole)
    up to the last one, so that a step costs next to nothing for them."""

    def __init__(self) -> None:
        self._held: dict[str, list[TokenChunk]] = {}

    def add(self, request: TokenRequest) -> None:
        """Before the first chunk of a request."""
        if request.whole:
            self._held[request.id] = []

    def forget(self, request_id: str) -> None:
        """Nothing more comes of a request. Harmless when done twice."""
        self._held.pop(request_id, None)

    def pass_on(
        self, chunks: Sequence[TokenChunk | EmbedChunk]
    ) -> Sequence[TokenChunk | EmbedChunk]:
        """What is to be handed on after a step that made `chunks`."""
        if not self._held:
            return chunks
        passed: list[TokenChunk | EmbedChunk] = []
        for chunk in chunks:
            if isinstance(chunk, TokenChunk) and chunk.id in self._held:
                passed += self._one(chunk)
            else:
                passed.append(chunk)
        return passed

    def _one(self, chunk: TokenChunk) -> list[TokenChunk]:
        held = self._held[chunk.id]
        if chunk.finish is not None:
            del self._held[chunk.id]
            if chunk.finish in ("error", "abort"):  # what was made before comes before it
                return [*([joined(held)] if held else ()), chunk]
        elif not chunk.tokens:
            return [chunk]  # it tells of the prompt only
        held.append(chunk)
        if chunk.finish is None and len(held) < MOST_HELD:
            return []
        whole = held[0] if len(held) == 1 else joined(held)
        held.clear()
        return [whole]
