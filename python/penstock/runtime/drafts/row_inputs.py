"""The inputs of a drafter's step over the rows of its target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.packed_positions import packed_positions
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
    query_starts, positions = packed_positions(starts, lengths)
    token_rows = np.repeat(rows, lengths)
    context_lens = starts + lengths
    sample_rows = query_starts[1:][samples] - np.int32(1)
    is_prompt = table.prompt_flags(token_rows, positions)
    return StepInputs(
        tokens=table.tokens_at(token_rows, positions),
        positions=positions,
        slots=table.slots_at(token_rows, positions),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=table.block_tables(rows, int(context_lens.max())),
        sample_rows=sample_rows,
        is_prompt=is_prompt,
        sampled_is_prompt=None if is_prompt is None else is_prompt[sample_rows],
    )
