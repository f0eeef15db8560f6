"""Requests the vectors of sequences from an engine, all with one adapter revision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Final

from penstock.adapters.view import NOT_FOUND, AdapterView
from penstock.base.errors import EngineFault, InvalidRequest, ServiceError
from penstock.base.ids import new_id
from penstock.dialog import AdapterRevision
from penstock.engine.protocol import Engine
from penstock.engine.types import EmbedRequest, MediaItem

TOKENS_OF_A_CALL: Final = 1 << 18
"""Maximum number of tokens in one message to the engine."""
MEDIA_BYTES_OF_A_CALL: Final = 32 * 1024 * 1024
"""Maximum bytes of media in one message to the engine, unless it has one sequence."""

Tokens = tuple[int, ...]
Media = tuple[MediaItem, ...]


class EmbeddingCalls:
    """Requests vectors from one engine.

    `adapters`: the adapters that requests may name, None if the model supports no adapters.
    """

    def __init__(self, engine: Engine, adapters: AdapterView | None) -> None:
        self._engine = engine
        self._adapters = adapters

    def resolve(self, wanted: str | AdapterRevision | None) -> str:
        """Return the revision of the adapter that a request names, "" for the base model. Raises
        InvalidRequest."""
        if wanted is None:
            return ""
        if self._adapters is None:
            raise InvalidRequest(
                "an encoder has no dynamic LoRA runtime; leave `adapter` out",
                field="adapter" if isinstance(wanted, str) else "adapter.generation",
                code="lora_runtime_unavailable",
            )
        return self._adapters.resolve(wanted)

    async def vectors(
        self,
        sequences: Sequence[Tokens],
        wanted: str | AdapterRevision | None,
        revision: str,
        second_starts: Sequence[int] = (),
        media: Sequence[Media] = (),
        rope_positions: Sequence[bytes] = (),
    ) -> tuple[list[bytes], str]:
        """Return (one vector per sequence, the adapter revision that computed all of them).

        `wanted`: the adapter in the request. `revision`: the result of `resolve`. If the alias is
        replaced before the engine has received all sequences, all vectors are computed with the new
        revision. `second_starts`, `media`, `rope_positions`: see EmbedRequest. Raises the engine's
        errors.
        """
        while True:
            parts: list[bytes] = []
            try:
                for cut in _cuts(sequences, media):
                    request = EmbedRequest(
                        new_id("emb_"),
                        tuple(sequences[cut]),
                        revision,
                        tuple(second_starts[cut]),
                        tuple(media[cut]),
                        tuple(rope_positions[cut]),
                    )
                    parts += await self._call(request)
                return parts, revision
            except ServiceError as error:
                if error.code != NOT_FOUND or wanted is None or self._adapters is None:
                    raise
            revision = await self._adapters.resolve_again(wanted, revision)

    async def _call(self, request: EmbedRequest) -> list[bytes]:
        parts: list[bytes] = []
        # `embed` is declared as AsyncIterator, but every engine returns a generator: aclose()
        # aborts it.
        async with aclosing(self._engine.embed(request)) as outputs:  # type: ignore[type-var]
            async for output in outputs:
                if output.finish == "error":
                    raise EngineFault(output.error or "the engine failed this request")
                parts.append(output.vectors)
        return parts


def _cuts(sequences: Sequence[Tokens], media: Sequence[Media]) -> Iterator[slice]:
    """Yield slices of `sequences`, each within the limits of a message or with one sequence.
    `media`: the media of each sequence, or ()."""
    start = tokens = size_bytes = 0
    for index, sequence in enumerate(sequences):
        own_bytes = sum(len(item.media.data) for item in media[index]) if media else 0
        tokens += len(sequence)
        size_bytes += own_bytes
        if index > start and (tokens > TOKENS_OF_A_CALL or size_bytes > MEDIA_BYTES_OF_A_CALL):
            yield slice(start, index)
            start, tokens, size_bytes = index, len(sequence), own_bytes
    yield slice(start, len(sequences))
