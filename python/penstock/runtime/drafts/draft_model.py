"""A drafter that is a smaller model with the same vocabulary.

It samples with the parameters, seeds and positions of the target. The random numbers depend on
nothing else, so a draft token often equals the target's sample even at high temperatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from penstock.kernels.step_inputs import StepInputs
from penstock.models.decoder.draft_head import HeadName
from penstock.runtime.backend import Floats, Ints, SamplingOps
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.drafts.computed_tokens import ComputedTokens
from penstock.runtime.drafts.draft_sampler import DraftSampler
from penstock.runtime.drafts.draft_vocabulary import DraftVocabulary
from penstock.runtime.drafts.row_inputs import row_inputs
from penstock.runtime.row_table import RowTable
from penstock.scheduler import MAX_DRAFT_TOKENS
from penstock.scheduler.types import Chunk, Draft, DraftSource, SampledToken, StepPlan

MAX_CATCH_UP: Final = 256
"""Most tokens per row and step that the draft model computes beyond those of the target's step.
While drafts are off it falls behind, and a long delay of the other rows must not follow."""


@dataclass(slots=True)
class _Draft:
    """The draft of one row. `end`: the number of tokens of the row that are or will be known once
    this step is complete. `wanted`: the most draft tokens, 0 for a part of a prompt."""

    row: int
    start: int
    end: int
    known: int
    wanted: int
    tokens: list[int]

    @property
    def samples(self) -> bool:
        return self.wanted > 0 and self.end == self.known


class DraftBackend(SamplingOps, Protocol):
    """The methods of a `DecoderBackend` that a draft model needs."""

    def logits(self, inputs: StepInputs[Ints], head: HeadName = "whole") -> Floats: ...

    def close(self) -> None: ...


class DraftSizes(Protocol):
    """The sizes of a draft model's steps and of its cache, as a memory plan has them."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def step_tokens(self) -> int: ...

    @property
    def cache(self) -> CacheShape: ...


class DraftModel:
    """A `Drafter` that runs a whole model on `backend`.

    `rows`: the rows of the target.
    `memory`: the sizes for which `backend` is built.
    `vocab_sizes`: rows of the embedding of the target and of the draft model.
    `vocabulary`: the tokens of the draft head; None without one.
    """

    source: DraftSource = "draft_model"
    reads_hidden = False

    def __init__(
        self,
        rows: RowTable,
        backend: DraftBackend,
        memory: DraftSizes,
        vocab_sizes: tuple[int, int],
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._max_model_len = memory.max_model_len
        self._step_tokens = memory.step_tokens
        self._computed = ComputedTokens(memory.cache.blocks, memory.cache.block_size)
        self._target_vocab, self._vocab = vocab_sizes
        self._sampler = DraftSampler(rows, backend, vocab_sizes, vocabulary)

    def propose(
        self, plan: StepPlan, sampled: Sequence[SampledToken], hidden: Floats | None
    ) -> tuple[Draft, ...]:
        """Compute the chunks that ask for drafts, as far as they are not computed, and propose
        tokens; see `Drafter.propose`. A row that is too far behind gets no tokens yet."""
        self._computed.apply(plan)
        failed = {one.row for one in sampled if one.failed}
        asked = [chunk for chunk in plan.chunks if chunk.num_drafts and chunk.row not in failed]
        drafts = self._begin(asked)
        if not drafts:
            return ()
        starts = np.array([draft.start for draft in drafts], np.int32)
        ends = np.array([draft.end for draft in drafts], np.int32)
        head = self._sampler.head([draft.row for draft in drafts if draft.samples])
        self._advance(drafts, starts, ends - starts, head)
        going_on = [draft for draft in drafts if draft.samples]
        while going_on := [one for one in going_on if 0 < len(one.tokens) < one.wanted]:
            starts = np.array([one.known + len(one.tokens) - 1 for one in going_on], np.int32)
            before = [len(one.tokens) for one in going_on]
            self._advance(going_on, starts, np.ones(len(going_on), np.int32), head)
            pairs = zip(going_on, before, strict=True)
            going_on = [one for one, count in pairs if len(one.tokens) > count]
        for draft in drafts:
            self._computed.advance(draft.row, draft.end, tuple(draft.tokens[:-1]))
        return tuple(Draft(one.row, tuple(one.tokens)) for one in drafts if one.tokens)

    def close(self) -> None:
        """Release the weights and the KV cache."""
        self._backend.close()

    def _begin(self, chunks: list[Chunk]) -> list[_Draft]:
        """Return the drafts of `chunks` that have tokens to compute, within the size of a step."""
        drafts: list[_Draft] = []
        room = self._step_tokens
        writes: set[int] = set()
        for chunk in sorted(chunks, key=lambda chunk: not chunk.samples):
            before = self._computed.computed(chunk.row)
            known = self._rows.num_known(chunk.row)
            new = min(known - before, MAX_DRAFT_TOKENS)
            after = self._rows.tokens_after(chunk.row, before - 1, new).tolist()
            start = self._computed.confirm(chunk.row, after)
            last = known if chunk.samples else chunk.start + chunk.length
            if chunk.samples:
                start = min(start, known - 1)
            end = min(last, start + chunk.length + MAX_CATCH_UP, start + room)
            wanted = chunk.num_drafts if chunk.samples else 0
            blocks = self._computed.blocks(chunk.row, start, end)
            # Rows with a common prefix share blocks, which one of them computes.
            if not writes.isdisjoint(blocks):
                continue
            if end > start and last + wanted <= self._max_model_len:
                writes.update(blocks)
                drafts.append(_Draft(chunk.row, start, end, last, wanted, []))
                room -= end - start
        return drafts

    def _advance(self, drafts: list[_Draft], starts: Ints, lengths: Ints, head: HeadName) -> None:
        """Compute tokens of each of `drafts` from `starts` on, and add one token to those that
        sample. A token that is not in the target's vocabulary is not added. `head`: the
        language-model head."""
        samples = np.array([draft.samples for draft in drafts])
        rows = np.array([draft.row for draft in drafts], np.intp)
        inputs = row_inputs(self._rows, rows, starts, lengths, samples)
        if self._vocab < self._target_vocab:
            inputs = replace(inputs, tokens=np.minimum(inputs.tokens, np.int32(self._vocab - 1)))
        logits = self._backend.logits(inputs, head)
        sampling = [draft for draft in drafts if draft.samples]
        if not sampling:
            return
        numbers = [draft.row for draft in sampling]
        counts = [len(draft.tokens) for draft in sampling]
        token_ids = self._sampler.sample(numbers, counts, logits, head)
        ahead = np.array(counts, np.intp)
        self._rows.put_ahead(numbers, ahead, np.maximum(np.array(token_ids, np.int32), 0))
        for draft, token in zip(sampling, token_ids, strict=True):
            if token >= 0:
                draft.tokens.append(token)
