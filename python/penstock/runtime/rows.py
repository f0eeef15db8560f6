"""The fixed table of rows: what the runtime remembers of each request between steps.

A plan carries only what changed; the table holds the rest as arrays, so that the inputs of a step
are built by whole-array operations, whatever the number of tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.dialog import Sampling
from penstock.kernels.sampling import SamplingRows
from penstock.kernels.table import StepInputs
from penstock.scheduler.types import Admit, Chunk, StepPlan

Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.intp]
_UINT64_MASK = (1 << 64) - 1


class RowTable:
    """`max_seqs` rows of up to `context_tokens` tokens in blocks of `block_tokens`.

    `tokens: [rows, context]`, `tables: [rows, blocks of a context]`: what lies past `known[row]`
    tokens and past the appended blocks is undefined.
    """

    def __init__(self, max_seqs: int, context_tokens: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        max_blocks = -(-context_tokens // block_tokens)
        self._tokens = np.zeros((max_seqs, context_tokens), np.int32)
        self._tables = np.zeros((max_seqs, max_blocks), np.int32)
        self._known = np.zeros(max_seqs, np.int64)
        self._num_blocks = [0] * max_seqs
        self._temperature = np.zeros(max_seqs, np.float32)
        self._top_k = np.zeros(max_seqs, np.int32)
        self._top_p = np.ones(max_seqs, np.float32)
        self._min_p = np.zeros(max_seqs, np.float32)
        self._seed = np.zeros(max_seqs, np.uint64)
        self.top_logprobs: list[int | None] = [None] * max_seqs

    @property
    def size_bytes(self) -> int:
        return self._tokens.nbytes + self._tables.nbytes

    def apply(self, plan: StepPlan) -> None:
        """Take in the plan's admissions and blocks. (A released row needs nothing: what it held
        is undefined until its next admission.)"""
        for admit in plan.admissions:
            self._admit(admit)
        for append in plan.blocks:
            row, begin = append.row, self._num_blocks[append.row]
            end = begin + len(append.blocks)
            self._tables[row, begin:end] = append.blocks
            self._num_blocks[row] = end

    def inputs(self, chunks: tuple[Chunk, ...]) -> StepInputs[Ints]:
        """The inputs of a step that computes `chunks`: new arrays, C-contiguous."""
        rows = np.array([chunk.row for chunk in chunks])
        starts = np.array([chunk.start for chunk in chunks])
        lengths = np.array([chunk.length for chunk in chunks])
        context_lens = starts + lengths
        query_starts = np.zeros(len(chunks) + 1, np.int64)
        np.cumsum(lengths, out=query_starts[1:])
        num_tokens = int(query_starts[-1])
        if num_tokens == len(chunks):
            positions, token_rows = starts, rows
        else:
            positions = np.arange(num_tokens) + np.repeat(starts - query_starts[:-1], lengths)
            token_rows = np.repeat(rows, lengths)
        blocks, offsets = np.divmod(positions, self._block_tokens)
        slots = self._tables[token_rows, blocks] * np.int32(self._block_tokens) + offsets
        width = -(-int(context_lens.max()) // self._block_tokens)
        samples = [index for index, chunk in enumerate(chunks) if chunk.samples]
        return StepInputs(
            tokens=self._tokens[token_rows, positions],
            positions=positions.astype(np.int32),
            slots=slots.astype(np.int32),
            query_starts=query_starts.astype(np.int32),
            context_lens=context_lens.astype(np.int32),
            block_tables=self._tables[rows, :width],
            sample_rows=(query_starts[1:][samples] - 1).astype(np.int32),
        )

    def sampling(self, rows: Rows) -> SamplingRows:
        """The sampling parameters of `rows`, for the token that follows their known ones."""
        return SamplingRows(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seed=self._seed[rows],
            position=self._known[rows].astype(np.uint64),
        )

    def append(self, rows: Rows, token_ids: Ints) -> None:
        """`token_ids[i]` follows the known tokens of `rows[i]`. Rows are distinct."""
        known = self._known[rows]
        self._tokens[rows, known] = token_ids
        self._known[rows] = known + 1

    def _admit(self, admit: Admit) -> None:
        row, length = admit.row, len(admit.token_ids)
        self._tokens[row, :length] = admit.token_ids
        self._known[row] = length
        self._num_blocks[row] = 0
        self._set_sampling(row, admit.sampling)
        self._seed[row] = admit.seed & _UINT64_MASK
        self.top_logprobs[row] = admit.top_logprobs

    def _set_sampling(self, row: int, sampling: Sampling) -> None:
        """None means off; a temperature of None means 1."""
        self._temperature[row] = 1.0 if sampling.temperature is None else sampling.temperature
        self._top_k[row] = max(sampling.top_k or 0, 0)
        self._top_p[row] = 1.0 if sampling.top_p is None else sampling.top_p
        self._min_p[row] = sampling.min_p or 0.0
