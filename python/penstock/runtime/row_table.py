"""The persistent batch on the CPU: the state of every row between steps.

A plan contains only changes. The table holds the rest as arrays, so that the inputs of a step are
built with whole-array operations, whatever the number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.dialog import Sampling
from penstock.kernels.recurrent_state import StateRows
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import MediaRows, StepInputs
from penstock.runtime.adapter_rows import GroupedRows, group_rows
from penstock.runtime.logits_processors import LogitsProcessorTable, RowLogitsProcessors
from penstock.runtime.media_rows import MediaTable
from penstock.runtime.min_tokens import FilledMasks, apply_min_tokens
from penstock.runtime.packed_positions import packed_positions
from penstock.runtime.prompt_rows import PromptTable
from penstock.runtime.sample_rows import sample_rows_of
from penstock.runtime.state_rows import StateTable
from penstock.scheduler.types import NO_ADAPTER, Admit, Chunk, StepPlan

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]
_UINT64_MASK = (1 << 64) - 1


@dataclass(slots=True)
class _StepRows:
    """Arrays of the last step that the next step reuses if it has the same rows.

    `rows`, `index`: the rows of the step, as a list and as an array.
    `tables`: their block tables.
    `adapters`: the adapter groups of a pure decode step.
    """

    rows: list[int] = field(default_factory=list)
    index: Index = field(default_factory=lambda: np.empty(0, np.intp))
    tables: Ints | None = None
    adapters: GroupedRows | None = None


@dataclass(slots=True)
class _SampledRows:
    """Arrays of the rows sampled last, which the next step reuses if it samples the same rows.

    `rows`, `index`: the sampled rows, as a list and as an array.
    `parameters`: their temperature, top-k, top-p, min-p and seed.
    """

    rows: list[int] = field(default_factory=list)
    index: Index = field(default_factory=lambda: np.empty(0, np.intp))
    parameters: tuple[npt.NDArray[Any], ...] = ()


class RowTable:
    """The persistent batch: `max_num_seqs` rows of up to `max_model_len` tokens in KV blocks of
    `block_size` tokens.

    The arrays of tokens [rows, context] and of block tables [rows, blocks per context] are
    undefined beyond the known tokens and the appended blocks of a row. A third array,
    `first_slots`, has the shape of the block tables: the token at position p of a row is stored in
    KV slot first_slots[row, p // P] + p.

    `media`: the media of the rows; None for a model that reads only text.
    `states`: the recurrent states of the rows; None for a model without recurrent layers.
    `prompts`: the prompts of the rows; None for a backend that computes prompt tokens like others.

    Arrays that depend only on the rows of a step are kept for the next step. Between two steps, the
    weights of the model displace these arrays and this code from the processor's caches, so every
    operation saved here saves microseconds.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        media: MediaTable | None = None,
        states: StateTable | None = None,
        prompts: PromptTable | None = None,
    ) -> None:
        self._block_size = block_size
        self._media = media
        self._states = states
        self._prompts = prompts
        max_blocks = -(-max_model_len // block_size)
        self._tokens = np.zeros((max_num_seqs, max_model_len), np.int32)
        self._tables = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._first_slots = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._known = np.zeros(max_num_seqs, np.int64)
        self._num_blocks = [0] * max_num_seqs
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self.top_logprobs: list[int | None] = [None] * max_num_seqs
        self.prompt_logprobs: list[int | None] = [None] * max_num_seqs
        self._adapter_slots = np.full(max_num_seqs, NO_ADAPTER, np.int32)
        self._logits_processors = LogitsProcessorTable()
        self._counting = np.arange(max_num_seqs + 1, dtype=np.int32)
        self._step = _StepRows()
        self._sampled = _SampledRows()

    @property
    def size_bytes(self) -> int:
        return self._tokens.nbytes + self._tables.nbytes + self._first_slots.nbytes

    def apply(self, plan: StepPlan) -> None:
        """Apply the releases, admissions, blocks and forced tokens of a plan. The arrays of a
        released row are undefined until its next admission."""
        for row in plan.releases:
            self._logits_processors.release(row)
            if self._media is not None:
                self._media.release(row)
        for admit in plan.admissions:
            self._admit(admit)
            self._sampled = _SampledRows()
        for append in plan.blocks:
            row, begin = append.row, self._num_blocks[append.row]
            end = begin + len(append.blocks)
            self._tables[row, begin:end] = append.blocks
            slots = (self._tables[row, begin:end] - np.arange(begin, end)) * self._block_size
            self._first_slots[row, begin:end] = slots
            self._num_blocks[row] = end
            self._step = _StepRows()
        for forced in plan.forced:
            self.extend(forced.row, forced.token_ids)

    def inputs(self, chunks: tuple[Chunk, ...]) -> StepInputs[Ints]:
        """Return the inputs of a step that computes `chunks` (prefills, decodes or both), as
        C-contiguous read-only arrays. The step computes logits first for the chunks that sample,
        then for the positions to score."""
        rows = [chunk.row for chunk in chunks]
        if self._step.rows != rows:
            self._step = _StepRows(rows, np.array(rows))
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        states = None
        if self._states is not None:
            states = self._states.inputs(chunks, self._step.index, starts)
        is_plain = self._media is None or self._media.are_plain(self._step.index, starts)
        if is_plain and all(
            chunk.length == 1 and chunk.samples and not chunk.draft_tokens for chunk in chunks
        ):
            return self._decode_inputs(starts, states)
        for chunk in chunks:
            if chunk.draft_tokens:  # written after the known tokens, where content is undefined
                begin = chunk.start + chunk.length
                self._tokens[chunk.row, begin : begin + len(chunk.draft_tokens)] = (
                    chunk.draft_tokens
                )
        lengths = np.array([chunk.length + len(chunk.draft_tokens) for chunk in chunks], np.int32)
        query_starts, positions = packed_positions(starts, lengths)
        token_rows = np.repeat(self._step.index, lengths)
        rope_positions, media = positions, None
        if self._media is not None:
            shifted = self._media.shifted(token_rows, positions)
            rope_positions = shifted
            if not is_plain:
                rope_positions, media = self._media.inputs(chunks, shifted, positions, query_starts)
        sample_rows = sample_rows_of(chunks, query_starts)
        token_slots = self._adapter_slots[token_rows]
        return self._inputs(
            positions=positions,
            rope_positions=rope_positions,
            media=media,
            token_rows=token_rows,
            context_lens=starts + lengths,
            query_starts=query_starts,
            sample_rows=sample_rows,
            adapters=group_rows(token_slots, token_slots[sample_rows], len(rows)),
            states=states,
        )

    def sampling(self, rows: list[int], ahead: Index | None = None) -> SamplingRows:
        """Return the sampling parameters of `rows` for their next token. `ahead: [S]`: number of
        draft tokens between the known tokens of each row and the token to sample, None for 0."""
        kept = self._sampling_of(rows)
        temperature, top_k, top_p, min_p, seed = kept.parameters
        known = self._known[kept.index]
        position = (known if ahead is None else known + ahead).view(np.uint64)
        bias, seen, dry = self._logits_processors.lists(rows)
        return SamplingRows(
            temperature, top_k, top_p, min_p, seed, position, bias=bias, seen=seen, dry=dry
        )

    def tokens_after(self, row: int, begin: int, count: int) -> Ints:
        """Return the known tokens of `row` at positions begin + 1 to begin + count."""
        return self._tokens[row, begin + 1 : begin + 1 + count]

    def num_known(self, row: int) -> int:
        """Return the number of known tokens of `row`."""
        return int(self._known[row])

    def tokens_at(self, token_rows: Index, positions: Ints) -> Ints:
        """Return the token at each of `positions` [T] of `token_rows` [T]."""
        return self._tokens[token_rows, positions]

    def slots_at(self, token_rows: Index, positions: Ints) -> Ints:
        """Return the KV slot of each of `positions` [T] of `token_rows` [T]."""
        return self._first_slots[token_rows, positions // self._block_size] + positions

    def block_tables(self, rows: Index, longest_context: int) -> Ints:
        """Return the block tables of `rows`, as wide as a context of `longest_context` tokens."""
        return self._tables[rows, : -(-longest_context // self._block_size)]

    def put_ahead(self, rows: list[int], ahead: Index, token_ids: Ints) -> None:
        """Write the token `token_ids[i]` after the known tokens of `rows[i]` and `ahead[i]` further
        ones, where content is undefined."""
        index = np.array(rows, np.intp)
        self._tokens[index, self._known[index] + ahead] = token_ids

    def adapter_slots(self, rows: list[int]) -> Ints:
        """Return the adapter slot of each of `rows`, negative for none."""
        return self._adapter_slots[rows]

    def sampling_state(self, rows: list[int]) -> tuple[npt.NDArray[Any], ...]:
        """Return seven arrays with one entry per row: number of known tokens, last token,
        temperature, top-k, top-p, min-p and seed. `adjustments` returns the numbers of the logits
        processors."""
        index = np.array(rows, np.intp)
        known = self._known[index]
        columns = (self._temperature, self._top_k, self._top_p, self._min_p, self._seed)
        last = self._tokens[index, known - 1]
        return known, last, *(column[index] for column in columns)

    def rope_positions(self, token_rows: Index, positions: Ints) -> Ints:
        """Return the RoPE position of the token at each of `positions` [T] of `token_rows` [T], the
        first one of a token with three."""
        return positions if self._media is None else self._media.times(token_rows, positions)

    def prompt_flags(self, token_rows: Index, positions: Ints) -> Ints | None:
        """Return whether the token at each of `positions` [T] of `token_rows` [T] is a prompt
        token; None if the backend computes all tokens alike. See `PromptTable`."""
        return None if self._prompts is None else self._prompts.flags(token_rows, positions)

    def rope_shifts(self, rows: list[int]) -> Ints:
        """Return for each of `rows` the number that is added to cache positions for RoPE; see
        `MediaTable`."""
        index = np.array(rows, np.intp)
        zeros = np.zeros(len(rows), np.int32)
        return zeros if self._media is None else self._media.shifted(index, zeros)

    def adjustments(self, rows: list[int]) -> tuple[Floats, Ints]:
        """Return the numbers of the logits processors that the device stores; see
        `LogitsProcessorTable.adjustments`."""
        return self._logits_processors.adjustments(rows)

    def logits_processors(self, row: int) -> RowLogitsProcessors | None:
        """Return the logits processors of a row, or None if it uses none. They do not include token
        masks."""
        return self._logits_processors.of(row)

    def need_cpu(self, rows: list[int]) -> bool:
        """Return whether any of `rows` has logits processors that a device cannot apply."""
        return self._logits_processors.need_cpu(rows)

    def apply_min_tokens(
        self, rows: list[int], ahead: Index | None, masks: FilledMasks | None, vocab_size: int
    ) -> FilledMasks | None:
        """Return the token masks `masks` combined with the min_tokens bans of `rows`. `ahead`: see
        `sampling`."""
        bans = self._logits_processors.min_tokens_bans(rows)
        if bans is None:
            return masks
        known = self._known[self._sampling_of(rows).index]
        return apply_min_tokens(masks, bans, known if ahead is None else known + ahead, vocab_size)

    def has_state(self, row: int) -> bool:
        """Return whether the distribution of the next token of `row` depends on the token sampled
        before it."""
        return self._logits_processors.has_state(row)

    def append(self, rows: list[int], token_ids: Ints) -> None:
        """Append the sampled token `token_ids[i]` to the known tokens of `rows[i]`. Each row occurs
        once."""
        index = self._sampling_of(rows).index
        known = self._known[index]
        self._tokens[index, known] = token_ids
        self._known[index] = known + 1
        self._logits_processors.append(rows, token_ids)

    def extend(self, row: int, token_ids: Sequence[int]) -> None:
        """Append several tokens to the known tokens of one row."""
        begin, count = int(self._known[row]), len(token_ids)
        self._tokens[row, begin : begin + count] = token_ids
        self._known[row] = begin + count
        self._logits_processors.extend(row, self._tokens[row, begin : begin + count])

    def _decode_inputs(self, positions: Ints, states: StateRows[Ints] | None) -> StepInputs[Ints]:
        """Return the inputs of a pure decode step without media: each row computes one token and
        samples the next. `positions`: cache position of the token of each row."""
        count = len(positions)
        rope_positions = positions
        if self._media is not None:
            rope_positions = self._media.shifted(self._step.index, positions)
        return self._inputs(
            positions=positions,
            rope_positions=rope_positions,
            media=None,
            token_rows=self._step.index,
            context_lens=positions + np.int32(1),
            query_starts=self._counting[: count + 1],
            sample_rows=self._counting[:count],
            adapters=self._adapters_of_rows(),
            states=states,
        )

    def _inputs(
        self,
        *,
        positions: Ints,
        rope_positions: Ints,
        media: MediaRows[Ints] | None,
        token_rows: Index,
        context_lens: Ints,
        query_starts: Ints,
        sample_rows: Ints,
        adapters: GroupedRows | None,
        states: StateRows[Ints] | None,
    ) -> StepInputs[Ints]:
        token_adapters, sample_adapters = (None, None) if adapters is None else adapters
        is_prompt = self.prompt_flags(token_rows, positions)
        return StepInputs(
            tokens=self.tokens_at(token_rows, positions),
            positions=rope_positions,
            slots=self.slots_at(token_rows, positions),
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=self._step_tables(int(context_lens.max())),
            sample_rows=sample_rows,
            adapters=token_adapters,
            sampled_adapters=sample_adapters,
            media=media,
            states=states,
            is_prompt=is_prompt,
            sampled_is_prompt=None if is_prompt is None else is_prompt[sample_rows],
        )

    def _adapters_of_rows(self) -> GroupedRows | None:
        """Return the adapter groups of a pure decode step."""
        step = self._step
        if step.adapters is None:
            slots = self._adapter_slots[step.index]
            step.adapters = group_rows(slots, slots, len(slots))
        return step.adapters

    def _step_tables(self, longest_context: int) -> Ints:
        step, width = self._step, -(-longest_context // self._block_size)
        if step.tables is None or step.tables.shape[1] != width:
            step.tables = self.block_tables(step.index, longest_context)
        return step.tables

    def _sampling_of(self, rows: list[int]) -> _SampledRows:
        if self._sampled.rows != rows:
            index = np.array(rows)
            columns = (self._temperature, self._top_k, self._top_p, self._min_p, self._seed)
            parameters = tuple(column[index] for column in columns)
            self._sampled = _SampledRows(rows, index, parameters)
        return self._sampled

    def _admit(self, admit: Admit) -> None:
        row, length = admit.row, len(admit.token_ids)
        self._tokens[row, :length] = admit.token_ids
        self._known[row] = length
        self._num_blocks[row] = 0
        self._set_sampling(row, admit.sampling)
        self._seed[row] = admit.seed & _UINT64_MASK
        self.top_logprobs[row] = admit.top_logprobs
        self.prompt_logprobs[row] = admit.prompt_logprobs
        self._adapter_slots[row] = admit.adapter_slot
        self._logits_processors.admit(self._tokens[row, :length], admit)
        if self._media is not None:
            self._media.admit(admit)
        if self._prompts is not None:
            self._prompts.admit(admit)

    def _set_sampling(self, row: int, sampling: Sampling) -> None:
        """Store the sampling parameters of a row. A temperature of None becomes 1; any other
        parameter of None is off."""
        self._temperature[row] = 1.0 if sampling.temperature is None else sampling.temperature
        self._top_k[row] = max(sampling.top_k or 0, 0)
        self._top_p[row] = 1.0 if sampling.top_p is None else sampling.top_p
        self._min_p[row] = sampling.min_p or 0.0
