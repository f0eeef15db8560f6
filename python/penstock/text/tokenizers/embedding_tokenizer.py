"""Tokenizes texts for embedding models, with the special tokens around each text."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import (
    TextForm,
    TokenizerData,
    TokenizerFiles,
    TokenizerSource,
)
from penstock.text.prompt_length_check import needs_length_check, overfull_start
from penstock.text.tokenizers.backend import bos_eos_tokens, build_backend
from penstock.text.tokenizers.panic_guard import errors_naming
from penstock.text.tokenizers.tokenizer_json import read_tokenizer_json
from penstock.text.tokenizers.wordpiece import word_pieces

TEXTS_AT_ONCE: Final = 64
"""Texts per batch. The library needs about 80 bytes per character until the batch is done."""
LONGEST_TOKEN_CHARS: Final = 512
"""Upper bound of the characters of a token: a text with more characters per token cannot fit."""
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class _Padding:
    token_id: int
    length: int
    side: Literal["left", "right"]


class EmbeddingTokenizer:
    """Encodes whole texts with the special tokens around each text ([CLS] and [SEP], or an end
    token). Thread-safe.

    - `form`: the form in which texts are encoded.
    - `padding`: None: sequences are not padded.
    - `end_id`: a sequence ends with the first of these tokens; negative: it is not cut.
    """

    def __init__(
        self,
        backend: Backend,
        form: TextForm = "as given",
        padding: _Padding | None = None,
        end_id: int = -1,
    ) -> None:
        self._backend = backend
        self._form = form
        self._padding = padding
        self._end_id = end_id

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, including the special tokens around it."""
        return [encoding.ids for encoding in self._encode(texts)]

    def encode_starts(self, texts: Sequence[str], most_tokens: int) -> list[list[int]]:
        """Return at most `most_tokens` token ids of each text. The end of the text is cut off; the
        special tokens around the text are kept."""
        return [_start(encoding, most_tokens) for encoding in self._encode(texts)]

    def encode_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens around it."""
        return [encoding.ids for encoding in self._encode(texts, framed=False)]

    def completed(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return a sequence as the model needs it: ended by its first end token, or padded."""
        if self._end_id in ids:
            ids = ids[: ids.index(self._end_id) + 1]
        padding = self._padding
        if padding is None:
            return ids
        added = (padding.token_id,) * (padding.length - len(ids))
        return added + ids if padding.side == "left" else ids + added

    def enough_of(self, text: str, most_tokens: int) -> str:
        """Return a prefix of a text that is long enough to decide whether the text has more than
        `most_tokens` tokens. A text that may fit is returned whole."""
        start = text[: most_tokens * LONGEST_TOKEN_CHARS]
        if needs_length_check(len(start), most_tokens):
            start = overfull_start(self.count, start, most_tokens)
        return start

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without the special tokens around it."""
        (encoding,) = self._encode_batch((text,), framed=False)
        return len(encoding.ids)

    def _encode(self, texts: Sequence[str], *, framed: bool = True) -> Iterator[Any]:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            yield from self._encode_batch(texts[start : start + TEXTS_AT_ONCE], framed=framed)

    def _encode_batch(self, texts: Sequence[str], *, framed: bool = True) -> list[Any]:
        texts = [_written(text, self._form) for text in texts]
        try:
            return list(self._backend.encode_batch_fast(list(texts), add_special_tokens=framed))
        except (TypeError, UnicodeEncodeError):  # lone surrogates, which JSON allows
            clean = [t.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for t in texts]
            return list(self._backend.encode_batch_fast(clean, add_special_tokens=framed))


def load_embedding_tokenizer(source: TokenizerSource) -> EmbeddingTokenizer:
    """Load the tokenizer of an embedding model. Raises ModelError that names the faulty file and
    key."""
    if isinstance(source, TokenizerData):
        framed = word_pieces if source.model == "bert" else _of_decoder
        with errors_naming(source.where):
            return EmbeddingTokenizer(framed(source))
    backend = read_tokenizer_json(source).backend
    padding, end_id = None, -1
    if source.padding is not None:
        own = source.padding
        padding = _Padding(_id_of(own.token, backend, source), own.length, own.side)
    if source.end_token is not None:
        end_id = _id_of(source.end_token, backend, source)
    return EmbeddingTokenizer(backend, source.form, padding, end_id)


def _id_of(token: str, backend: Backend, source: TokenizerFiles) -> int:
    token_id: int | None = backend.token_to_id(token)
    if token_id is None:
        raise ModelError(f"{source.tokenizer}: has no token {token!r}, which the model needs")
    return token_id


def _written(text: str, form: TextForm) -> str:
    """Return a text in the form in which it is encoded. Control tokens in the text are changed
    too."""
    match form:
        case "as given":
            return text
        case "lower case":
            return text.lower()
        case "bare words":
            return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def _of_decoder(data: TokenizerData) -> Backend:
    """Make the tokenizer of a decoder used for embeddings, which adds the BOS and EOS tokens that
    the metadata ask for: usually an EOS token, whose hidden state is the embedding of the text."""
    backend = build_backend(data)
    before, after = bos_eos_tokens(data)
    if before or after:
        around = {data.tokens[token]: token for token in (*before, *after)}
        names = [data.tokens[token] for token in before] + ["$A"]
        names += [data.tokens[token] for token in after]
        backend.post_processor = processors.TemplateProcessing(
            single=names, special_tokens=list(around.items())
        )
    return backend


def _start(encoding: Any, most_tokens: int) -> list[int]:
    ids: list[int] = encoding.ids
    if len(ids) <= most_tokens:
        return ids
    added: list[int] = encoding.special_tokens_mask
    before = next((i for i, mark in enumerate(added) if not mark), len(added))
    after = next((i for i, mark in enumerate(reversed(added)) if not mark), 0)
    room = max(most_tokens - before - after, 0)
    end = len(ids) - after
    return (ids[: before + room] + ids[end:])[:most_tokens]
