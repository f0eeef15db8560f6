"""Embeddings of texts: from request to vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final

from penstock.adapters.live import NOT_FOUND, LiveAdapters
from penstock.base.errors import ContextLengthExceeded, EngineFault, InvalidRequest, ServiceError
from penstock.base.ids import new_id
from penstock.dialog import AdapterGeneration, EmbeddingRequest, Embeddings
from penstock.engine.protocol import Engine
from penstock.engine.types import EmbedRequest
from penstock.models.tokenizer_data import EmbeddingParts
from penstock.text.outgrowing import is_suspicious, start_that_fills
from penstock.text.sentences import SentenceTokenizer, load_sentence_tokenizer

MAX_INPUTS: Final = 2048
LONG_INPUT_CHARS: Final = 8192
"""More text than this is tokenized in a thread."""
LONGEST_TOKEN_CHARS: Final = 512
"""No token of a model covers more, so a text that is longer than so many a token cannot fit."""
TOKENS_OF_A_CALL: Final = 1 << 18
"""So many tokens go to the engine at once: a message has a bounded size."""

Tokens = tuple[int, ...]


class EmbeddingRunner:
    """Calls one embedding model. `prompt` goes before every text; `adapters`: those that requests
    may name, None where none can be for the model. All methods are called from the engine's asyncio
    loop."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: SentenceTokenizer,
        prompt: str = "",
        adapters: LiveAdapters | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._adapters = adapters

    @classmethod
    def load(
        cls, engine: Engine, parts: EmbeddingParts, adapters: LiveAdapters | None = None
    ) -> EmbeddingRunner:
        """For a loaded engine and the text parts of its model. Raises ModelError."""
        live = (adapters or LiveAdapters()) if parts.adaptable else None
        return cls(engine, load_sentence_tokenizer(parts.tokenizer), parts.prompt, live)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """A vector for each input. Cancelling it aborts what is not computed yet.

        Raises InvalidRequest, ContextLengthExceeded, and what the engine raises: Overloaded,
        Unavailable, EngineFault.
        """
        _check(request)
        generation = self._resolve(request.adapter)
        info = self._engine.info
        chars = sum(len(given) for given in request.inputs if isinstance(given, str))
        if chars > LONG_INPUT_CHARS:
            sequences = await asyncio.to_thread(self._sequences, request, info.context_tokens)
        else:
            sequences = self._sequences(request, info.context_tokens)
        vectors, generation = await self._vectors(sequences, request.adapter, generation)
        return Embeddings(
            model=request.model or info.model_id,
            vectors=b"".join(vectors),
            width=info.embedding_width,
            prompt_tokens=sum(map(len, sequences)),
            adapter_generation=generation or None,
        )

    def _resolve(self, wanted: str | AdapterGeneration | None) -> str:
        """The generation that a request means, "" for the base model."""
        if wanted is None:
            return ""
        if self._adapters is None:
            raise InvalidRequest(
                "an encoder has no dynamic LoRA runtime; leave `adapter` out",
                field="adapter" if isinstance(wanted, str) else "adapter.generation",
                code="lora_runtime_unavailable",
            )
        return self._adapters.resolve(wanted)

    def _sequences(self, request: EmbeddingRequest, context_tokens: int) -> list[Tokens]:
        """The token ids of each input. Token ids are taken as they are, without frame or prompt."""
        most_chars = context_tokens * LONGEST_TOKEN_CHARS
        texts = []
        for index, given in enumerate(request.inputs):
            if not isinstance(given, str):
                continue
            text = given[:most_chars]
            if is_suspicious(len(text), context_tokens):
                text = start_that_fills(self._tokenizer.count, text, context_tokens)
            if len(text) < len(given) and not request.truncate:
                raise _exceeded(request, context_tokens, index)
            texts.append(self._prompt + text)
        if request.truncate:
            encoded = iter(self._tokenizer.encode_starts(texts, context_tokens))
        else:
            encoded = iter(self._tokenizer.encode(texts))
        sequences: list[Tokens] = []
        for index, given in enumerate(request.inputs):
            ids = tuple(next(encoded)) if isinstance(given, str) else given
            if len(ids) > context_tokens:
                if not request.truncate:
                    raise _exceeded(request, context_tokens, index, len(ids))
                ids = ids[:context_tokens]
            if not ids:
                raise InvalidRequest("the text has no tokens", field=_field(request, index))
            sequences.append(ids)
        return sequences

    async def _vectors(
        self,
        sequences: Sequence[Tokens],
        wanted: str | AdapterGeneration | None,
        generation: str,
    ) -> tuple[list[bytes], str]:
        """Vectors that are all of one generation, and that. An alias may be switched after it was
        looked up and before the engine has all of the request: then the new one makes them all."""
        while True:
            try:
                calls = [await self._call(call, generation) for call in _calls(sequences)]
                return list(chain.from_iterable(calls)), generation
            except ServiceError as error:
                if error.code != NOT_FOUND or wanted is None or self._adapters is None:
                    raise
            generation = await self._adapters.resolve_again(wanted, generation)

    async def _call(self, sequences: Sequence[Tokens], generation: str) -> list[bytes]:
        request = EmbedRequest(new_id("emb_"), tuple(sequences), generation)
        parts: list[bytes] = []
        # The Protocol says AsyncIterator; every engine gives a generator, which aclose() aborts.
        async with aclosing(self._engine.embed(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                if chunk.finish == "error":
                    raise EngineFault(chunk.error or "the engine failed this request")
                parts.append(chunk.vectors)
        return parts


def _check(request: EmbeddingRequest) -> None:
    if not request.inputs:
        raise InvalidRequest("input must not be empty", field="input")
    if len(request.inputs) > MAX_INPUTS:
        raise InvalidRequest(f"input may hold at most {MAX_INPUTS} entries", field="input")
    for index, given in enumerate(request.inputs):
        if not given:
            raise InvalidRequest("an input must not be empty", field=_field(request, index))


def _calls(sequences: Sequence[Tokens]) -> Iterator[list[Tokens]]:
    """The sequences in order, cut where their tokens become too many for one message."""
    call: list[Tokens] = []
    tokens = 0
    for sequence in sequences:
        if call and tokens + len(sequence) > TOKENS_OF_A_CALL:
            yield call
            call, tokens = [], 0
        call.append(sequence)
        tokens += len(sequence)
    yield call


def _field(request: EmbeddingRequest, index: int) -> str:
    return "input" if len(request.inputs) == 1 else f"input[{index}]"


def _exceeded(
    request: EmbeddingRequest, context_tokens: int, index: int, tokens: int | None = None
) -> ContextLengthExceeded:
    has = "more" if tokens is None else f"{tokens} tokens"
    field = _field(request, index)
    return ContextLengthExceeded(
        f"this model takes {context_tokens} tokens; {field} makes {has}; "
        "truncate_sequence keeps its start",
        field=field,
    )
