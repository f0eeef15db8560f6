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
from penstock.engine.types import EmbedRequest

TOKENS_OF_A_CALL: Final = 1 << 18
"""Maximum number of tokens in one message to the engine."""

Tokens = tuple[int, ...]


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
    ) -> tuple[list[bytes], str]:
        """Return (one vector per sequence, the adapter revision that computed all of them).

        `wanted`: the adapter in the request. `revision`: the result of `resolve`. If the alias is
        replaced before the engine has received all sequences, all vectors are computed with the new
        revision. `second_starts`: see EmbedRequest. Raises the engine's errors.
        """
        while True:
            parts: list[bytes] = []
            try:
                for cut in _cuts(sequences):
                    starts = tuple(second_starts[cut])
                    parts += await self._call(tuple(sequences[cut]), revision, starts)
                return parts, revision
            except ServiceError as error:
                if error.code != NOT_FOUND or wanted is None or self._adapters is None:
                    raise
            revision = await self._adapters.resolve_again(wanted, revision)

    async def _call(
        self, sequences: tuple[Tokens, ...], revision: str, second_starts: tuple[int, ...]
    ) -> list[bytes]:
        request = EmbedRequest(new_id("emb_"), sequences, revision, second_starts)
        parts: list[bytes] = []
        # `embed` is declared as AsyncIterator, but every engine returns a generator: aclose()
        # aborts it.
        async with aclosing(self._engine.embed(request)) as outputs:  # type: ignore[type-var]
            async for output in outputs:
                if output.finish == "error":
                    raise EngineFault(output.error or "the engine failed this request")
                parts.append(output.vectors)
        return parts


def _cuts(sequences: Sequence[Tokens]) -> Iterator[slice]:
    """Yield slices of `sequences`, each with at most TOKENS_OF_A_CALL tokens or one sequence."""
    start = tokens = 0
    for index, sequence in enumerate(sequences):
        if index > start and tokens + len(sequence) > TOKENS_OF_A_CALL:
            yield slice(start, index)
            start, tokens = index, 0
        tokens += len(sequence)
    yield slice(start, len(sequences))
