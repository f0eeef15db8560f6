"""The tokens that drafts are chosen from, if a drafter does not read its whole language-model head.

A pass of a drafter computes one token, so its time is that of reading its weights, and in a model
with a large vocabulary most of these are the language-model head. Drafts need only probable tokens:
another one cannot be drafted and is sampled by the target as without drafts (FR-Spec,
arXiv 2502.14856). Tokenizers number tokens by frequency: BPE by the order of merges, except that
SentencePiece numbers the characters last. The frequencies are those of the text that the tokenizer
was trained on, so the rule would fail for other languages; `DraftVocabulary.head` looks at the text
itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.models.decoder.draft_head import HeadName
from penstock.runtime.drafts.restricted_sampling import restricted
from penstock.runtime.drafts.vocabulary import VocabularyTokens

Ints = npt.NDArray[np.int32]

LAST_TOKENS: Final = 128
"""The text that says whether the draft head knows a row's tokens: the last ones of prompt and
answer."""
_LEAST_SAVING: Final = 0.05
"""The share of the bytes of a step with one draft token that a draft head must save. Below, the
tokens that it lacks cost as much: 3 to 9 % of English text and code at 32,768 tokens."""
_CHARACTERS: Final = 8
"""Up to an eighth of the tokens are characters."""
_UNUSED: Final = re.compile(r"unused|reserved|dummy|<special_\d+>", re.IGNORECASE)
"""Names of special tokens that models never write."""


@dataclass(frozen=True, slots=True)
class PassBytes:
    """The weights that are read for one token, in bytes.

    - `step`: by the target.
    - `layers`: by a pass of the drafter, without its language-model head.
    - `head`: the whole language-model head of the drafter, with `vocab_size` rows.
    """

    step: int
    layers: int
    head: int
    vocab_size: int

    def saving(self, count: int) -> float:
        """Return the share of the bytes of a step with one draft token that a draft head of `count`
        tokens saves."""
        saved = self.head * (1 - min(count / self.vocab_size, 1.0))
        return saved / (self.step + self.layers + self.head)

    def saves(self, count: int) -> bool:
        """Return whether a draft head of `count` tokens saves enough."""
        return self.saving(count) >= _LEAST_SAVING


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens of a draft head.

    - `ids`: [N] ascending, as the sampler orders them.
    - `most_outside`: the share of other tokens in the text of the rows up to which the draft head
      is faster than the whole one.
    - `head_bytes`: the memory of the draft head.
    """

    ids: Ints
    most_outside: float
    head_bytes: int = 0

    @cached_property
    def places(self) -> Ints:
        """The place of each token in `ids`, -1 for others. The last entry is that of all tokens
        beyond it."""
        places = np.full(int(self.ids[-1]) + 2, -1, np.int32)
        places[self.ids] = np.arange(len(self.ids), dtype=np.int32)
        return places

    def head(self, texts: Iterable[Ints]) -> HeadName:
        """Return the language-model head that drafts for the rows with the last tokens `texts`."""
        shares = [float((self._places_of(text) < 0).mean()) for text in texts]
        return "draft" if sum(shares) <= self.most_outside * len(shares) else "whole"

    def sampling(self, rows: SamplingRows) -> SamplingRows:
        """Return sampling parameters for the logits of the draft head."""
        return restricted(rows, self.ids, self._places_of)

    def _places_of(self, tokens: Ints) -> Ints:
        return self.places.take(tokens, mode="clip")


def draft_head_bytes(vocabulary: DraftVocabulary | None) -> int:
    """Return the memory of the draft head with this vocabulary."""
    return 0 if vocabulary is None else vocabulary.head_bytes


def draft_vocabulary(tokens: VocabularyTokens, count: int, cost: PassBytes) -> DraftVocabulary:
    """Return the draft vocabulary of up to `count` tokens for a drafter with the vocabulary
    `tokens`.

    A step with one draft token, accepted with probability p, makes 1 + p tokens. If a share q of
    the text is outside, the draft head makes 1 + (1 - q) p of them, in 1 - saving of the time. At
    p = 1 the two are equally fast for q = 2 * saving, and for longer drafts nearly there.
    """
    chosen = sorted(frequent_ids(tokens, count, cost.vocab_size))
    row_bytes = cost.head / cost.vocab_size
    return DraftVocabulary(
        ids=np.array(chosen, np.int32),
        most_outside=2 * cost.saving(len(chosen)),
        head_bytes=math.ceil(len(chosen) * row_bytes),
    )


def frequent_ids(tokens: VocabularyTokens, count: int, vocab_size: int) -> Sequence[int]:
    """Return up to `count` ids below `vocab_size`: special tokens, then characters (a symbol of the
    tokenizer each), then all others by their ids."""
    ids = sorted(id for id in tokens.texts if id < vocab_size)
    special = [id for id in ids if id in tokens.special and not _UNUSED.search(tokens.texts[id])]
    others = [id for id in ids if id not in tokens.special]
    characters = [id for id in others if len(tokens.texts[id]) == 1]
    ranked = dict.fromkeys((*special, *characters[: count // _CHARACTERS], *others))
    return list(ranked)[:count]
