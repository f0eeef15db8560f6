"""The inputs of a drafter's step over the rows of its target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.row_table import RowTable

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]


def row_inputs(
    table: RowTable, rows: Index, starts: Ints, lengths: Ints, samples: npt.NDArray[np.bool_]
) -> StepInputs[Ints]:
    """Return the inputs of a step that computes the tokens [start, start + length) of each of
    `rows`, and the logits after the last of them where `samples` is True. All arrays are [R].

    Tokens of media have their placeholder ids, because a drafter reads only text.
    """
    query_starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    shifts = np.repeat(starts - query_starts[:-1], lengths)
    positions = np.arange(query_starts[-1], dtype=np.int32) + shifts
    token_rows = np.repeat(rows, lengths)
    context_lens = starts + lengths
    return StepInputs(
        tokens=table.tokens_at(token_rows, positions),
        positions=positions,
        slots=table.slots_at(token_rows, positions),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=table.block_tables(rows, int(context_lens.max())),
        sample_rows=query_starts[1:][samples] - np.int32(1),
    )
