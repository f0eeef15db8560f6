"""The drafter that is the MTP head of the model itself.

After each step of the target, the head computes one pass over the tokens whose hidden states the
step computed, except rejected draft tokens, and so fills its own KV cache. The pass proposes one
token for each sequence. Each further pass proposes one more from the head's own hidden state. The
next step of the target computes the same positions again, with its own hidden states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.models.decoder.draft_head import HeadName
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.mtp_weights import MtpWeights
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.weight_slices import size_bytes
from penstock.runtime.backend import Backend, Floats, Ints, MtpRunner
from penstock.runtime.drafts.draft_sampler import DraftSampler
from penstock.runtime.drafts.draft_vocabulary import DraftVocabulary, draft_head_bytes
from penstock.runtime.drafts.memory import DrafterMemory
from penstock.runtime.drafts.row_inputs import row_inputs
from penstock.runtime.memory import MemoryPlan
from penstock.runtime.row_table import RowTable
from penstock.scheduler.types import Draft, DraftSource, SampledToken, StepPlan


@dataclass(frozen=True, slots=True)
class OpenedMtp:
    """The MTP head of a model with the spec `spec`.

    - `head`: its weights.
    - `vocabulary`: the tokens of its draft head; None without one.
    """

    spec: DecoderSpec
    head: MtpWeights
    vocabulary: DraftVocabulary | None = None

    def memory(self, plan: MemoryPlan) -> DrafterMemory:
        """Return the memory that the head needs beside a target with the sizes of `plan`. Its
        activations use the memory of the target's."""
        return DrafterMemory(
            weight_bytes=self.head.packed_bytes(size_bytes) + draft_head_bytes(self.vocabulary),
            cache=replace(plan.cache, layers=mtp_decoder(self.spec).caches),
            buffer_bytes=4 * plan.step_tokens * self.spec.hidden_size,
        )

    def start(self, plan: MemoryPlan, rows: RowTable, backend: Backend) -> MtpDrafter:
        """Return the drafter. `backend` has packed the weights."""
        assert backend.mtp is not None
        sizes = self.spec.vocab_size, self.spec.vocab_size
        return MtpDrafter(rows, backend.mtp, DraftSampler(rows, backend, sizes, self.vocabulary))


@dataclass(slots=True)
class _Row:
    """A row of the target in one step.

    - `start`, `length`: the positions that the first pass computes.
    - `first`: the index of the hidden state at `start`.
    - `wanted`: the number of draft tokens asked for.
    - `tokens`: the draft tokens so far.
    """

    row: int
    start: int
    length: int
    first: int
    wanted: int
    tokens: list[int] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return len(self.tokens) < self.wanted


class MtpDrafter:
    """A `Drafter` that runs an MTP head. `rows`: those of the target."""

    source: DraftSource = "mtp"
    reads_hidden = True

    def __init__(self, rows: RowTable, head: MtpRunner, sampler: DraftSampler) -> None:
        self._rows = rows
        self._head = head
        self._sampler = sampler

    def propose(
        self, plan: StepPlan, sampled: Sequence[SampledToken], hidden: Floats | None
    ) -> tuple[Draft, ...]:
        """Compute the keys and values of the head for the tokens of `plan`, and return draft
        tokens; see `Drafter.propose`."""
        assert hidden is not None
        rows = self._computed(plan, sampled)
        if not rows:
            return ()
        head = self._sampler.head([one.row for one in rows if one.goes_on])
        states, index = self._first_pass(rows, hidden, head)
        left = [place for place, one in enumerate(rows) if one.goes_on and one.tokens]
        while left:
            states = self._next_pass([rows[place] for place in left], states, index[left], head)
            index = np.full(len(rows), -1, np.int32)
            index[left] = np.arange(len(left))
            left = [place for place in left if rows[place].goes_on]
        drafts = (Draft(one.row, tuple(one.tokens)) for one in rows)
        return tuple(draft for draft in drafts if draft.token_ids)

    def close(self) -> None:
        """Do nothing: the backend of the target releases the head."""

    def _computed(self, plan: StepPlan, sampled: Sequence[SampledToken]) -> list[_Row]:
        """Return the rows of `plan`, with the positions whose hidden states are those of known
        tokens and whose next token is known."""
        counts = Counter(one.row for one in sampled)
        failed = {one.row for one in sampled if one.failed}
        rows, first = [], 0
        for chunk in plan.chunks:
            accepted = max(counts[chunk.row] - 1, 0)
            last = self._rows.num_known(chunk.row) - 1
            length = min(chunk.length + accepted, last - chunk.start)
            if length > 0 and chunk.row not in failed:
                wanted = chunk.num_drafts if chunk.samples else 0
                rows.append(_Row(chunk.row, chunk.start, length, first, wanted))
            first += chunk.length + len(chunk.draft_tokens)
        return rows

    def _first_pass(self, rows: list[_Row], hidden: Floats, head: HeadName) -> tuple[Floats, Ints]:
        """Run the MTP head over the hidden states of the target, and propose one token for each row
        that asks for some. Return the hidden states of the MTP head, and the index of the last one
        of each row. `head`: the language-model head."""
        numbers = np.array([one.row for one in rows], np.intp)
        starts = np.array([one.start for one in rows], np.int32)
        lengths = np.array([one.length for one in rows], np.int32)
        samples = np.array([one.goes_on for one in rows])
        inputs = row_inputs(self._rows, numbers, starts, lengths, samples)
        of_tokens = np.repeat(numbers, lengths)
        inputs = replace(
            inputs,
            tokens=self._rows.tokens_at(of_tokens, inputs.positions + np.int32(1)),
            positions=self._rows.rope_positions(of_tokens, inputs.positions),
        )
        firsts = np.array([one.first for one in rows], np.int32)
        index = np.repeat(firsts - inputs.query_starts[:-1], lengths)
        index += np.arange(len(index), dtype=np.int32)
        logits, states = self._head.run(inputs, hidden, index, head)
        self._sample([one for one in rows if one.goes_on], logits, head)
        return states, inputs.query_starts[1:] - np.int32(1)

    def _next_pass(self, rows: list[_Row], states: Floats, index: Ints, head: HeadName) -> Floats:
        """Run the MTP head over one further token of each row, its last draft token, and propose
        one more. Return the hidden states of the MTP head, one for each row."""
        numbers = np.array([one.row for one in rows], np.intp)
        ones = np.ones(len(rows), np.int32)
        ends = [one.start + one.length + len(one.tokens) - 1 for one in rows]
        positions = np.array(ends, np.int32)
        inputs = row_inputs(self._rows, numbers, positions, ones, ones == 1)
        inputs = replace(
            inputs,
            tokens=np.array([one.tokens[-1] for one in rows], np.int32),
            positions=self._rows.rope_positions(numbers, positions),
        )
        logits, states = self._head.run(inputs, states, index, head)
        self._sample(rows, logits, head)
        return states

    def _sample(self, rows: list[_Row], logits: Floats, head: HeadName) -> None:
        """Sample one draft token for each of `rows`. A row whose logits are not finite gets no
        further tokens."""
        if not rows:
            return
        numbers, counts = [one.row for one in rows], [len(one.tokens) for one in rows]
        token_ids = self._sampler.sample(numbers, counts, logits, head)
        for one, token in zip(rows, token_ids, strict=True):
            if token < 0:
                one.wanted = 0
            else:
                one.tokens.append(token)
