"""Packs the inputs of a step into one array of words, in the format of `kernels.persistent_batch`.

The row table on the CPU lacks the tokens that a step in flight samples. A row whose last token only
the device knows is *carried*: the words of its next chunk refer to that token instead of containing
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.kernels.persistent_batch import CHUNK_WORDS, RUN_WORDS, UPDATE_WORDS
from penstock.runtime.gpu.adapter_groups import GroupWords
from penstock.runtime.gpu.state_words import StatePacker, StateWords
from penstock.runtime.row_table import RowTable
from penstock.scheduler import MAX_DRAFT_TOKENS
from penstock.scheduler.types import AppendBlocks, Chunk, StepPlan

Ints = npt.NDArray[np.int32]
_NO_UPDATES: Ints = np.empty((0, UPDATE_WORDS), np.int32)


class StepSizes(NamedTuple):
    """The sizes of a step, including padding.

    `places`: number of tokens whose logits are computed.
    `sampled`: number of these tokens after which a token is sampled.
    """

    chunks: int
    tokens: int
    places: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed step.

    `num_words`: number of words to send, 0 if the device has them already.
    `chunks`, `tokens`, `places`, `sampled`: see `StepSizes`.
    `tokens_at`, `updates_at`, `num_updates`, `runs_at`, `num_runs`: see `Upload`.
    `blocks`: KV blocks of the longest context, 0 for the maximum.
    `groups`: layout of the adapter groups, None if no row has an adapter.
    `states`: layout of the recurrent states, None for a model without recurrent layers.
    """

    num_words: int
    chunks: int
    tokens: int
    places: int
    sampled: int
    tokens_at: int = 0
    updates_at: int = 0
    num_updates: int = 0
    runs_at: int = 0
    num_runs: int = 0
    blocks: int = 0
    groups: GroupWords | None = None
    states: StateWords | None = None


def is_decode(plan: StepPlan) -> bool:
    """Return whether all chunks of a step are decodes: one token that samples, without draft tokens
    and prompt scores."""
    return all(
        chunk.length == 1 and chunk.samples and not chunk.draft_tokens and not chunk.num_scores
        for chunk in plan.chunks
    )


def max_words(
    max_num_seqs: int,
    max_chunks: int,
    step_tokens: int,
    max_blocks: int,
    num_slots: int,
    *,
    recurrent: bool,
) -> int:
    """Return the number of words of the largest step. Arguments: see `StepPacker`."""
    most_tokens = max(step_tokens, max_chunks)
    places = min(most_tokens, max_chunks + max_num_seqs + MAX_DRAFT_TOKENS)
    chunks = GroupWords(min(max_chunks, num_slots), max_chunks, most_tokens, places).end
    if recurrent:
        chunks = StateWords(chunks, max_chunks).end
    updates = max_num_seqs * UPDATE_WORDS
    runs = (2 * max_num_seqs + MAX_DRAFT_TOKENS) * RUN_WORDS
    return chunks + updates + runs + max_num_seqs * max_blocks + step_tokens


class StepPacker:
    """Packs steps of the rows in `rows`.

    `max_num_seqs`: number of rows.
    `max_chunks`: most chunks of a step, including padding.
    `step_tokens`: most tokens of a step.
    `max_blocks`: most KV blocks of a sequence.
    `num_slots`: number of adapter slots.
    `states`: the recurrent states of the rows, None for a model without recurrent layers.
    """

    def __init__(
        self,
        rows: RowTable,
        *,
        max_num_seqs: int,
        max_chunks: int,
        step_tokens: int,
        max_blocks: int,
        block_size: int,
        num_slots: int = 0,
        states: StatePacker | None = None,
    ) -> None:
        self._rows = rows
        self._states = states
        self._num_slots = num_slots
        self._block_size = block_size
        self._scratch = max_num_seqs
        self._carried = np.zeros(max_num_seqs, bool)
        self._num_blocks = [0] * max_num_seqs
        self._sent: tuple[list[int], int] = ([], 0)
        self._decode = np.zeros((max_chunks, CHUNK_WORDS), np.int32)
        self._decode[:, 1] = -1
        self._decode[:, 2] = 1
        self._decode[:, 3] = self._decode[:, 4] = np.arange(max_chunks)
        self._decode[:, 6] = -1
        self.max_words = max_words(
            max_num_seqs,
            max_chunks,
            step_tokens,
            max_blocks,
            num_slots,
            recurrent=states is not None,
        )

    def pack(self, plan: StepPlan, words: Ints, fill_up_to: int = 0) -> Packed:
        """Pack a step into `words`. The row table must have applied the plan already. `fill_up_to`:
        number of chunks to which a decode step is padded, 0 for no padding."""
        changed = self._note_changes(plan)
        decode = is_decode(plan)
        if decode:
            changed |= self._mark_carried([chunk.row for chunk in plan.chunks])
        updates = sorted(changed)
        blocks = 0 if fill_up_to else self._longest(plan.chunks)
        stays = True
        if self._states is not None:
            stays = self._states.step(plan.chunks, fill_up_to if decode else 0)
        if decode:
            rows = [chunk.row for chunk in plan.chunks]
            count = max(len(rows), fill_up_to)
            if stays and not updates and not plan.blocks and self._sent == (rows, count):
                return replace(self.decode_layout(count, self.is_adapted(plan)), blocks=blocks)
            sizes = StepSizes(count, count, count, count)
            sent, tokens = self._decode_words(rows, count), np.empty(0, np.int32)
            self._sent = (rows, count)
        else:
            self._sent = ([], 0)
            sent, tokens, sizes = self._mixed_words(plan.chunks)
        self._carry(plan.chunks)
        words[: sent.size] = sent.reshape(-1)
        groups = self._write_groups(words, plan, sizes)
        begin = sent.size if groups is None else groups.end
        states = None
        if self._states is not None:
            states = self._states.write(words, begin)
            begin = states.end
        packed = Packed(begin, *sizes, blocks=blocks, groups=groups, states=states)
        changes = self._updates(updates) if updates else _NO_UPDATES
        return _Changes(changes, *self._runs(plan.blocks), tokens).write(words, packed)

    def pack_dummy(self, words: Ints, count: int, adapted: bool) -> Packed:
        """Pack a step of `count` padding decodes. `adapted`: it has the words of adapter groups."""
        self._sent = ([], 0)
        sent = self._decode_words([], count)
        words[: sent.size] = sent.reshape(-1)
        packed = self.decode_layout(count, adapted)
        end = sent.size
        if packed.groups is not None:
            packed.groups.write_dummy(words)
            end = packed.groups.end
        if self._states is not None and packed.states is not None:
            self._states.write_dummy(words, packed.states)
            end = packed.states.end
        return replace(packed, num_words=end)

    def decode_layout(self, count: int, adapted: bool) -> Packed:
        """Return the layout of a step of `count` decodes without changes. `adapted`: a row has an
        adapter."""
        groups = self._group_words(count, count, count) if adapted else None
        states = None
        if self._states is not None:
            begin = count * CHUNK_WORDS if groups is None else groups.end
            states = StateWords(begin, count)
        return Packed(0, count, count, count, count, groups=groups, states=states)

    def is_adapted(self, plan: StepPlan) -> bool:
        """Return whether any row of a step has an adapter."""
        if not self._num_slots:
            return False
        slots = self._rows.adapter_slots([chunk.row for chunk in plan.chunks])
        return bool(slots.max() >= 0)

    def mark_cpu_sampled(self, plan: StepPlan) -> None:
        """Mark the rows of a step as not carried, because the CPU sampled them."""
        self._carried[[chunk.row for chunk in plan.chunks]] = False

    def _group_words(self, chunks: int, tokens: int, places: int) -> GroupWords:
        return GroupWords(min(chunks, self._num_slots), chunks, tokens, places)

    def _write_groups(self, words: Ints, plan: StepPlan, sizes: StepSizes) -> GroupWords | None:
        """Write the adapter groups of a step and return their layout; None if no row has an
        adapter. `sizes`: may include padding."""
        if not self.is_adapted(plan):
            return None
        groups = self._group_words(sizes.chunks, sizes.tokens, sizes.places)
        slots = self._rows.adapter_slots([chunk.row for chunk in plan.chunks])
        groups.write(words, plan.chunks, slots)
        return groups

    def _longest(self, chunks: tuple[Chunk, ...]) -> int:
        """Return the number of KV blocks of the longest context."""
        ends = (chunk.start + chunk.length + len(chunk.draft_tokens) for chunk in chunks)
        return -(-max(ends) // self._block_size)

    def _decode_words(self, rows: list[int], count: int) -> Ints:
        """Return the words of `count` decodes with carried tokens: first the decodes of `rows`,
        then padding."""
        sent = self._decode[:count]
        sent[:, 0] = self._scratch
        sent[: len(rows), 0] = rows
        return sent

    def _note_changes(self, plan: StepPlan) -> set[int]:
        """Record the admissions and the forced tokens of a plan. Return the rows whose state must
        be sent to the device."""
        admitted = [admit.row for admit in plan.admissions]
        for row in admitted:
            self._num_blocks[row] = 0
        self._carried[admitted] = False
        self._carried[[forced.row for forced in plan.forced]] = False
        return set(admitted)

    def _mark_carried(self, rows: list[int]) -> set[int]:
        """Mark all of `rows` as carried. Return the rows that were not carried before."""
        fresh = {row for row in rows if not self._carried[row]}
        self._carried[list(fresh)] = True
        return fresh

    def _carry(self, chunks: tuple[Chunk, ...]) -> None:
        """Mark each row of `chunks` as carried or not: carried if the device samples its last token
        and there are no draft tokens."""
        for chunk in chunks:
            self._carried[chunk.row] = chunk.samples and not chunk.draft_tokens

    def _mixed_words(self, chunks: tuple[Chunk, ...]) -> tuple[Ints, Ints, StepSizes]:
        """Return the words of the chunks, the tokens and the sizes of a step with prefill chunks,
        draft tokens or prompt scores."""
        sampled = sum(1 + len(chunk.draft_tokens) for chunk in chunks if chunk.samples)
        tokens = np.zeros(sum(chunk.length + len(chunk.draft_tokens) for chunk in chunks), np.int32)
        described = []
        first, place, score_place = 0, 0, sampled
        for chunk in chunks:
            start, draft = chunk.start, len(chunk.draft_tokens)
            length = chunk.length + draft
            if self._carried[chunk.row] and length == 1:
                start = -1
            else:
                known = self._rows.tokens_after(chunk.row, chunk.start - 1, chunk.length)
                tokens[first : first + chunk.length] = known
                tokens[first + chunk.length : first + length] = chunk.draft_tokens
            sampled_at = place if chunk.samples else -1
            samples = (sampled_at, draft, score_place, chunk.score_from, chunk.num_scores)
            described.append((chunk.row, start, length, first, *samples))
            first += length
            place += 1 + draft if chunk.samples else 0
            score_place += chunk.num_scores
        sizes = StepSizes(len(chunks), first, score_place, sampled)
        return np.array(described, np.int32), tokens, sizes

    def _updates(self, rows: list[int]) -> Ints:
        known, last, temperature, top_k, top_p, min_p, seed = self._rows.sampling_state(rows)
        packed = np.empty((len(rows), UPDATE_WORDS), np.int32)
        halves = seed.view(np.int32).reshape(-1, 2)  # little-endian: the low half first
        floats = [part.view(np.int32) for part in (temperature, top_p, min_p)]
        columns = [np.array(rows), known, last, *floats, halves[:, 0], halves[:, 1]]
        packed[:, (0, 1, 2, 3, 5, 6, 7, 8)] = np.stack(columns, axis=1)
        packed[:, 4] = top_k
        penalties, counts = self._rows.adjustments(rows)
        packed[:, 9:12], packed[:, 12:15] = penalties.view(np.int32), counts
        packed[:, 15] = self._rows.rope_shifts(rows)
        return packed

    def _runs(self, blocks: tuple[AppendBlocks, ...]) -> tuple[Ints, list[int]]:
        described: list[tuple[int, ...]] = []
        given: list[int] = []
        for append in blocks:
            begin, count = self._num_blocks[append.row], len(append.blocks)
            described.append((append.row, begin, count, len(given)))
            given += append.blocks
            self._num_blocks[append.row] = begin + count
        return np.array(described, np.int32).reshape(-1, RUN_WORDS), given


@dataclass(frozen=True, slots=True)
class _Changes:
    """The words that follow the chunks and the adapter groups of a step.

    `updates`: row updates [n, UPDATE_WORDS].
    `runs`: runs of blocks to append [n, RUN_WORDS], with positions counted from the first of
    `given`.
    `given`: the blocks of all runs.
    `tokens`: the tokens of the step.
    """

    updates: Ints
    runs: Ints
    given: list[int]
    tokens: Ints

    def write(self, words: Ints, packed: Packed) -> Packed:
        """Write the changes after the words of `packed`. Return `packed` with the positions of the
        changes."""
        updates_at = packed.num_words
        runs_at = updates_at + self.updates.size
        blocks_at = runs_at + self.runs.size
        tokens_at = blocks_at + len(self.given)
        end = tokens_at + len(self.tokens)
        self.runs[:, 3] += blocks_at
        words[updates_at:runs_at] = self.updates.reshape(-1)
        words[runs_at:blocks_at] = self.runs.reshape(-1)
        words[blocks_at:tokens_at] = self.given
        words[tokens_at:end] = self.tokens
        return replace(
            packed,
            num_words=end,
            tokens_at=tokens_at,
            updates_at=updates_at,
            num_updates=len(self.updates),
            runs_at=runs_at,
            num_runs=len(self.runs),
        )
