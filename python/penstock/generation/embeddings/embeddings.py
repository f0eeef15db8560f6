"""Runs embedding requests: tokenizes the inputs and returns their vectors."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from penstock.adapters.view import AdapterView
from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import ConversationInput, EmbeddingRequest, Embeddings
from penstock.dialog.ranges import MAX_INPUTS
from penstock.engine.protocol import Engine
from penstock.generation.embeddings.conversations import Conversations, EmbeddedSequence
from penstock.generation.embeddings.engine_calls import EmbeddingCalls, Tokens
from penstock.models.tokenizer.tokenizer_data import EmbeddingParts
from penstock.text.tokenizers.embedding_tokenizer import (
    EmbeddingTokenizer,
    load_embedding_tokenizer,
)

LONG_INPUT_CHARS: Final = 8192
"""Inputs with more characters in total are tokenized in a thread."""


class EmbeddingRunner:
    """Runs the embedding requests of one model. To be called from the engine's asyncio loop.

    - `tokenizer`: tokenizes texts; None for a model that embeds no texts.
    - `prompt`: a text that is inserted before every input text.
    - `adapters`: the adapters that requests may name, None if the model supports no adapters.
    - `conversations`: makes sequences of inputs with media; None: the model reads text only.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: EmbeddingTokenizer | None,
        prompt: str = "",
        adapters: AdapterView | None = None,
        conversations: Conversations | None = None,
    ) -> None:
        self._conversations = conversations
        self._engine = engine
        self._calls = EmbeddingCalls(engine, adapters)
        self._tokenizer = tokenizer
        self._prompt = prompt

    @classmethod
    def load(
        cls,
        engine: Engine,
        parts: EmbeddingParts,
        adapters: AdapterView | None = None,
        conversations: Conversations | None = None,
    ) -> EmbeddingRunner:
        """Make the runner of an engine. `parts`: the tokenizer and prompt of its model. Raises
        ModelError."""
        live = (adapters or AdapterView()) if parts.supports_lora else None
        tokenizer = load_embedding_tokenizer(parts.tokenizer)
        prompt = "" if parts.templated else parts.prompt
        return cls(engine, tokenizer, prompt, live, conversations)

    @property
    def reads_text(self) -> bool:
        """Whether the model embeds texts."""
        return self._tokenizer is not None

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Return a vector for each input. Cancelling the call aborts inputs that are not computed
        yet.

        Raises InvalidRequest, ContextLengthExceeded, and the engine's errors: Overloaded,
        Unavailable, EngineFault.
        """
        _check(request)
        request = self._formed(request)
        revision = self._calls.resolve(request.adapter)
        info = self._engine.info
        chars = sum(len(given) for given in request.inputs if isinstance(given, str))
        if chars > LONG_INPUT_CHARS:
            texts = await asyncio.to_thread(self._sequences, request, info.max_model_len)
        else:
            texts = self._sequences(request, info.max_model_len)
        sequences = iter(texts)
        placed = [await self._conversation(request, given) for given in request.inputs]
        tokens = [one.tokens if one else next(sequences) for one in placed]
        has_media = any(one is not None and one.media for one in placed)
        has_positions = any(one is not None and one.rope_positions for one in placed)
        vectors, revision = await self._calls.vectors(
            tokens,
            request.adapter,
            revision,
            media=[one.media if one else () for one in placed] if has_media else (),
            rope_positions=(
                [one.rope_positions if one else b"" for one in placed] if has_positions else ()
            ),
        )
        return Embeddings(
            model=request.model or info.model_id,
            vectors=b"".join(vectors),
            width=info.embedding_width,
            prompt_tokens=sum(map(len, tokens)),
            adapter_revision=revision or None,
        )

    def _formed(self, request: EmbeddingRequest) -> EmbeddingRequest:
        """Return the request with each input in the form in which it is embedded."""
        if self._conversations is None:
            return request
        return replace(request, inputs=tuple(map(self._conversations.form, request.inputs)))

    async def _conversation(
        self, request: EmbeddingRequest, given: str | Tokens | ConversationInput
    ) -> EmbeddedSequence | None:
        """Return the sequence of a conversation, None for any other input. Raises ServiceError."""
        if not isinstance(given, ConversationInput):
            return None
        if self._conversations is None:
            raise InvalidRequest(
                "this model embeds texts only", field="input", code="unsupported_value"
            )
        return await self._conversations.sequence(given, request.truncate)

    def _sequences(self, request: EmbeddingRequest, max_model_len: int) -> list[Tokens]:
        """Return the token ids of each input that is no conversation. An input that is already
        token ids is only checked or truncated. Raises InvalidRequest, ContextLengthExceeded."""
        if self._tokenizer is None:
            if not all(isinstance(given, ConversationInput) for given in request.inputs):
                raise InvalidRequest(
                    "this model embeds images, no texts", field="input", code="unsupported_value"
                )
            return []
        texts = []
        for index, given in enumerate(request.inputs):
            if not isinstance(given, str):
                continue
            text = self._tokenizer.enough_of(given, max_model_len)
            if len(text) < len(given) and not request.truncate:
                raise _exceeded(request, max_model_len, index)
            texts.append(self._prompt + text)
        if request.truncate:
            encoded = iter(self._tokenizer.encode_starts(texts, max_model_len))
        else:
            encoded = iter(self._tokenizer.encode(texts))
        sequences: list[Tokens] = []
        for index, given in enumerate(request.inputs):
            if isinstance(given, ConversationInput):
                continue
            ids = tuple(next(encoded)) if isinstance(given, str) else given
            if len(ids) > max_model_len:
                if not request.truncate:
                    raise _exceeded(request, max_model_len, index, len(ids))
                ids = ids[:max_model_len]
            if not ids:
                raise InvalidRequest("the text has no tokens", field=_field(request, index))
            sequences.append(self._tokenizer.completed(ids))
        return sequences


def _check(request: EmbeddingRequest) -> None:
    if not request.inputs:
        raise InvalidRequest("input must not be empty", field="input")
    if len(request.inputs) > MAX_INPUTS:
        raise InvalidRequest(f"input may hold at most {MAX_INPUTS} entries", field="input")
    for index, given in enumerate(request.inputs):
        if not given:
            raise InvalidRequest("an input must not be empty", field=_field(request, index))


def _field(request: EmbeddingRequest, index: int) -> str:
    return "input" if len(request.inputs) == 1 else f"input[{index}]"


def _exceeded(
    request: EmbeddingRequest, max_model_len: int, index: int, tokens: int | None = None
) -> ContextLengthExceeded:
    has = "more" if tokens is None else f"{tokens} tokens"
    field = _field(request, index)
    return ContextLengthExceeded(
        f"this model takes {max_model_len} tokens; {field} makes {has}; "
        "truncate_sequence keeps its start",
        field=field,
    )
