"""Samples draft tokens as the target will sample its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.models.decoder.draft_head import HeadName
from penstock.runtime.backend import Floats, Ints, SamplingOps
from penstock.runtime.drafts.draft_vocabulary import LAST_TOKENS, DraftVocabulary
from penstock.runtime.row_table import RowTable


class DraftSampler:
    """Samples draft tokens with the parameters, seeds and positions of the target's rows.

    - `table`: the rows of the target.
    - `ops`: samples the tokens.
    - `vocab_sizes`: logits of the target and of the whole language-model head of the drafter.
    - `vocabulary`: the tokens of the draft head; None without one.
    """

    def __init__(
        self,
        table: RowTable,
        ops: SamplingOps,
        vocab_sizes: tuple[int, int],
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        self._table = table
        self._ops = ops
        self._target_vocab, self._vocab = vocab_sizes
        self.vocabulary = vocabulary

    def head(self, rows: Sequence[int]) -> HeadName:
        """Return the language-model head to run for drafts of `rows`."""
        if self.vocabulary is None or not rows:
            return "whole"
        return self.vocabulary.head(map(self._last_tokens, rows))

    def sample(
        self, rows: list[int], num_drafts: Sequence[int], logits: Floats, head: HeadName
    ) -> list[int]:
        """Sample the next draft token of each of `rows`, which has `num_drafts` draft tokens so
        far. Return negative numbers for rows whose logits are not finite, and for tokens that the
        target does not have. `logits`: [S, V or N], the result of `head`, modified in place."""
        sampling = self._sampling(rows, num_drafts)
        if head == "whole" or self.vocabulary is None:
            tokens = self._ops.sample(logits, sampling)
        else:
            places = self._ops.sample(logits, self.vocabulary.sampling(sampling))
            tokens = np.where(places < 0, places, self.vocabulary.ids[np.maximum(places, 0)])
        known: list[int] = np.where(tokens < self._target_vocab, tokens, -1).tolist()
        return known

    def _sampling(self, rows: list[int], num_drafts: Sequence[int]) -> SamplingRows:
        """Return the target's sampling parameters for the next draft token of each of `rows`.
        Penalties count only the known tokens. Lists that may name tokens that only the target has
        are left out."""
        ahead = np.array(num_drafts, np.intp)
        sampling = self._table.sampling(rows, ahead)
        masks = self._table.apply_min_tokens(rows, ahead, None, self._vocab)
        if masks is not None:
            sampling = replace(sampling, masks=masks[0], mask_of=masks[1])
        if self._vocab < self._target_vocab:
            sampling = replace(sampling, bias=None, seen=None, dry=None)
        return sampling

    def _last_tokens(self, row: int) -> Ints:
        known = self._table.num_known(row)
        count = min(known, LAST_TOKENS)
        return self._table.tokens_after(row, known - count - 1, count)
