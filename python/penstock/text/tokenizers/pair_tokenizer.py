"""Tokenizes (query, document) pairs for rerankers: with special tokens around both texts, or
inserted into a model's template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import PairTemplate, TokenizerFiles, TokenizerSource
from penstock.text.tokenizers.backend import build_backend
from penstock.text.tokenizers.embedding_tokenizer import EmbeddingTokenizer
from penstock.text.tokenizers.panic_guard import errors_naming
from penstock.text.tokenizers.tokenizer_json import read_tokenizer_json

Ids = list[int]


@dataclass(frozen=True, slots=True)
class PairPrefixes:
    """Token ids of one query with each of its documents, up to the document's end.

    - `query_tokens`: number of tokens before the document.
    - `token_ids`: one list per document: the query's tokens, then the document's tokens. Empty if
      the query leaves no room for documents.
    """

    query_tokens: int
    token_ids: Sequence[Ids]


class PairTokenizer(Protocol):
    """Tokenizes (query, document) pairs. Thread-safe."""

    @property
    def end(self) -> Ids:
        """Ids of the tokens after the second text."""

    @property
    def typed(self) -> bool:
        """Whether the second text and the tokens after it have token type 1 (BERT's segments)."""

    def prefixes(self, query: str, documents: Sequence[str], most_tokens: int) -> PairPrefixes:
        """Return the token ids of each pair up to the end of the document. A long document may be
        cut, but its pair then still has more than `most_tokens` tokens."""


@dataclass(frozen=True, slots=True)
class FramedPairs:
    """Encodes both texts separately and puts the special tokens `before`, `between` and `end`
    around them."""

    tokenizer: EmbeddingTokenizer
    before: Ids
    between: Ids
    end: Ids
    typed: bool

    def prefixes(self, query: str, documents: Sequence[str], most_tokens: int) -> PairPrefixes:
        """See `PairTokenizer`."""
        (query_ids,) = self.tokenizer.encode_bare([self.tokenizer.enough_of(query, most_tokens)])
        before = self.before + query_ids + self.between
        if len(before) >= most_tokens:
            return PairPrefixes(len(before), ())
        room = most_tokens - len(before)
        texts = [self.tokenizer.enough_of(text, room + 1) for text in documents]
        token_ids = [before + ids for ids in self.tokenizer.encode_bare(texts)]
        return PairPrefixes(len(before), token_ids)


@dataclass(frozen=True, slots=True)
class TemplatedPairs:
    """Inserts both texts into a template and encodes the whole text.

    - `before`, `between`: texts of the template before the query and before the document.
    - `end`: ids of the tokens after the document, the first of which is a control token.
    """

    tokenizer: EmbeddingTokenizer
    before: str
    between: str
    end: Ids
    typed: bool = False

    def prefixes(self, query: str, documents: Sequence[str], most_tokens: int) -> PairPrefixes:
        """See `PairTokenizer`."""
        start = self.before + self.tokenizer.enough_of(query, most_tokens) + self.between
        (start_ids,) = self.tokenizer.encode_bare([start])
        if len(start_ids) >= most_tokens:
            return PairPrefixes(len(start_ids), ())
        texts = [start + self.tokenizer.enough_of(text, most_tokens + 1) for text in documents]
        return PairPrefixes(len(start_ids), self.tokenizer.encode_bare(texts))


def load_pair_tokenizer(
    source: TokenizerSource, template: PairTemplate | None = None
) -> PairTokenizer:
    """Load the pair tokenizer of a reranker.

    Raises ModelError that names the faulty file or key.
    """
    if isinstance(source, TokenizerFiles):
        return _framed(source)
    assert template is not None, "GGUF metadata do not say how pairs are framed"
    with errors_naming(source.where):
        tokenizer = EmbeddingTokenizer(build_backend(source))
    (end,) = tokenizer.encode_bare([template.after])
    return TemplatedPairs(tokenizer, template.before, template.between, end)


def _framed(source: TokenizerFiles) -> FramedPairs:
    backend = read_tokenizer_json(source).backend
    probe = backend.encode("a", "a", add_special_tokens=True)
    texts: list[int | None] = probe.sequence_ids
    types: list[int] = probe.type_ids
    if 0 not in texts or 1 not in texts:
        raise ModelError(f"{source.tokenizer}: has no token for the letter a")
    first, second = texts.index(0), texts.index(1)
    first_end = first + texts.count(0)
    second_end = second + texts.count(1)
    typed = types[second] != 0
    if types != [0] * second + [int(typed)] * (len(types) - second):
        raise ModelError(f"{source.tokenizer}: token types {types} of a pair are not supported")
    parts = probe.ids[:first], probe.ids[first_end:second], probe.ids[second_end:]
    return FramedPairs(EmbeddingTokenizer(backend), *parts, typed)
