"""Pairs of texts to token ids: framed as a tokenizer says, or written into a model's template."""

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
    """Pairs but for their ends: `each` is a query with one of its documents, which begins after
    `query_tokens` of it; empty where the query leaves no room to any."""

    query_tokens: int
    each: Sequence[Ids]


class PairTokenizer(Protocol):
    """Safe to use from several threads."""

    @property
    def end(self) -> Ids:
        """The tokens after the second text."""

    @property
    def typed(self) -> bool:
        """Whether the tokens of the second text and after it are of another type than the first
        ones."""

    def prefixes(self, query: str, documents: Sequence[str], most_tokens: int) -> PairPrefixes:
        """The token ids up to the end of each document. What makes more than `most_tokens` may be
        cut where it has more."""


@dataclass(frozen=True, slots=True)
class FramedPairs:
    """The two texts are encoded each by itself: `before`, `between` and `end` are around them."""

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
        each = [before + ids for ids in self.tokenizer.encode_bare(texts)]
        return PairPrefixes(len(before), each)


@dataclass(frozen=True, slots=True)
class TemplatedPairs:
    """A template's parts, which are encoded with the texts between them; `end` begins with a token
    of its own."""

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
    """Raises ModelError naming the file or the key at fault."""
    if isinstance(source, TokenizerFiles):
        return _framed(source)
    assert template is not None, "without a template only a folder says how pairs are framed"
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
        raise ModelError(f"{source.tokenizer}: makes no tokens of the letter a")
    first, second = texts.index(0), texts.index(1)
    first_end = first + texts.count(0)
    second_end = second + texts.count(1)
    typed = types[second] != 0
    if types != [0] * second + [int(typed)] * (len(types) - second):
        raise ModelError(f"{source.tokenizer}: token types {types} of a pair are not supported")
    parts = probe.ids[:first], probe.ids[first_end:second], probe.ids[second_end:]
    return FramedPairs(EmbeddingTokenizer(backend), *parts, typed)
