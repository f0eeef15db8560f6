"""Prepares decode attention once for all layers of a step: builds the list of (row, split) units on
the device, and holds the memory for the partial results of rows with several splits.

A runtime creates one `AttentionWork` for each pair of head sizes and attention window of its
model's layers, with capacities that no step exceeds. At the start of each step, inside the captured
graph, it calls `plan(inputs)`; it passes `StepInputs(..., work={(heads, window): work})`. Without
prepared work, each call of the attention op plans for itself: correct, but slower.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.kv_splits import MOST_SPLITS, most_splits, smallest_split
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton.compile.launch import launch
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.paged_attention.attention_tile import oldest_seen, split_tokens

_ROWS = 1024  # rows whose counts are added up at a time


@triton.jit(do_not_specialize=["rows", "window", "tokens", "split"])
def attention_work_kernel(
    units,
    count,
    starts,
    contexts,
    rows,
    window,
    tokens,
    split,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
):
    """Write the units of one row after the units of all earlier rows. The program of the last row
    writes the total number of units."""
    row = tl.program_id(0)
    before = tl.full((), 0, dtype=tl.int32)
    for base in range(0, row + 1, ROWS):
        other = base + tl.arange(0, ROWS)
        number, _ = _splits(starts, contexts, other, other < row, window, tokens, split)
        before += tl.sum(number, axis=0)
    own, oldest = _splits(starts, contexts, row, row < rows, window, tokens, split)
    for base in range(0, own, UNITS):
        index = base + tl.arange(0, UNITS)
        place = units + 2 * (before + index)
        tl.store(place, tl.zeros_like(index) + row, mask=index < own)
        tl.store(place + 1, oldest + index, mask=index < own)
    if row == rows - 1:
        tl.store(count, before + own)


@triton.jit
def _splits(starts, contexts, row, inside, window, tokens, split):
    """Return the number of splits of a row, 0 for a row that decode attention does not compute, and
    the index of the first split."""
    length = tl.load(starts + row + 1, mask=inside, other=0)
    length -= tl.load(starts + row, mask=inside, other=0)
    context = tl.load(contexts + row, mask=inside, other=0)
    size = split_tokens(context, split)
    oldest = oldest_seen(context - length, window) // size
    served = (length > 0) & (length <= tokens) & (context > 0)
    return tl.where(served, (context + size - 1) // size - oldest, 0), oldest


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """The units of a step and the memory for partial results; see `allocate`.

    `units: [U, 2]`: int32 (row, split). `count: [1]`: int32 number of units.
    `parts: [U, K, lanes, D]`, `stats: [U, K, lanes, 2]`: float32, see `decode_attention_kernel`.
    `arrived: [R, K]`: int32, zero between launches.
    `window`: attention window in tokens, 0 for none, -c for chunks of c tokens.
    `tokens`: most tokens of a row that decode attention computes.
    `split`: keys of the smallest split (`kernels/kv_splits.py`).
    """

    units: torch.Tensor
    count: torch.Tensor
    parts: torch.Tensor
    stats: torch.Tensor
    arrived: torch.Tensor
    window: int
    tokens: int
    split: int
    multiprocessors: int

    @staticmethod
    def allocate(
        rows: int,
        units: int,
        heads: tuple[int, int, int],
        window: int,
        device: torch.device | str,
        tokens: int = 1,
        split: int | None = None,
    ) -> AttentionWork:
        """Allocate for steps of up to `rows` rows, with `units` splits in total (see `most_units`)
        and up to `tokens` tokens per row. `tokens` is 1 for steps with as many tokens as rows."""
        q_heads, kv_heads, dim = heads
        lanes = tokens * (q_heads // kv_heads)

        def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return AttentionWork(
            units=empty(units, 2, dtype=torch.int32),
            count=empty(1, dtype=torch.int32),
            parts=empty(units, kv_heads, lanes, dim, dtype=torch.float32),
            stats=empty(units, kv_heads, lanes, 2, dtype=torch.float32),
            arrived=torch.zeros(rows, kv_heads, dtype=torch.int32, device=device),
            window=window,
            tokens=tokens,
            split=split or smallest_split(),
            multiprocessors=multiprocessors(device),
        )

    def plan(self, inputs: StepInputs[torch.Tensor]) -> None:
        """List the units of a step, without allocating memory or waiting for the device."""
        rows = len(inputs.context_lens)
        assert rows <= len(self.arrived), "more rows than the work was allocated for"
        launch(
            attention_work_kernel,
            (rows,),
            *(self.units, self.count, inputs.query_starts, inputs.context_lens),
            *(rows, self.window, self.tokens, self.split),
            num_warps=4,
            ROWS=_ROWS,
            UNITS=MOST_SPLITS,
        )


def most_units(rows: int, max_model_len: int, split: int | None = None) -> int:
    """Return the most splits that `rows` rows of up to `max_model_len` tokens can have in total.
    `split`: see `AttentionWork`."""
    return rows * most_splits(max_model_len, split or smallest_split())


def work_of(
    inputs: StepInputs[torch.Tensor],
    heads: tuple[int, int, int],
    window: int,
    tokens: int,
    block_size: int,
) -> AttentionWork:
    """Return the work that `inputs` carries for these heads, this window and rows of up to `tokens`
    tokens; if there is none, allocate and plan it."""
    prepared: dict[tuple[tuple[int, int, int], int], AttentionWork] = inputs.work or {}
    work = prepared.get((heads, window))
    if work is None or work.tokens != tokens:
        rows, width = inputs.block_tables.shape
        units = most_units(rows, width * block_size)
        work = AttentionWork.allocate(
            rows, units, heads, window, inputs.block_tables.device, tokens
        )
        work.plan(inputs)
    return work


def multiprocessors(device: torch.device | str) -> int:
    """Return the number of multiprocessors of the GPU, or 2 if kernels are interpreted."""
    if torch.device(device).type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
