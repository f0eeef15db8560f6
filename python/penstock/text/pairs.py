"""Pairs of texts to token ids, framed as a tokenizer says."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.errors import ModelError
from penstock.models.tokenizer_data import TokenizerFiles
from penstock.text.sentences import SentenceTokenizer
from penstock.text.tokenizer_json import read_tokenizer_json


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The tokens before, between and after two texts. `typed`: those of the second text and after
    it are of another type than the first ones."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: bool

    @property
    def tokens(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


def load_pair_tokenizer(source: TokenizerFiles) -> tuple[SentenceTokenizer, PairFrame]:
    """Raises ModelError naming the file at fault."""
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
    ids = tuple(probe.ids)
    frame = PairFrame(ids[:first], ids[first_end:second], ids[second_end:], typed)
    return SentenceTokenizer(backend), frame
