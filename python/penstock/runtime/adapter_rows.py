"""Groups the tokens of a step by adapter slot, in the layout that the LoRA kernels read."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import AdapterRows

Ints = npt.NDArray[np.int32]
GroupedRows: TypeAlias = "tuple[AdapterRows[Ints], AdapterRows[Ints]]"
"""The groups of all tokens of a step, and the groups of its sampled rows, in the same order of
adapter slots."""


def group_rows(token_slots: Ints, sample_slots: Ints, num_rows: int) -> GroupedRows | None:
    """Group the tokens and the sampled rows of a step by adapter slot.

    `token_slots: [T]`, `sample_slots: [S]`: the adapter slot of each token and of each sampled row,
    negative for none. `num_rows`: number of groups to return, the most that can occur; unused
    groups are empty and come last. Return None if no token has an adapter.
    """
    if token_slots.max(initial=-1) < 0:
        return None
    used = np.unique(token_slots)
    used = used[used >= 0]
    slots = np.zeros(num_rows, np.int32)
    slots[: len(used)] = used
    return _grouped(slots, used, token_slots), _grouped(slots, used, sample_slots)


def _grouped(slots: Ints, used: Ints, row_slots: Ints) -> AdapterRows[Ints]:
    ascending = np.argsort(row_slots, kind="stable")
    bare = int(np.count_nonzero(row_slots < 0))  # without adapter: first here, last in `order`
    order = np.concatenate([ascending[bare:], ascending[:bare]]).astype(np.int32)
    starts = np.full(len(slots) + 1, len(order) - bare, np.int32)
    starts[: len(used)] = np.searchsorted(row_slots[order[: len(order) - bare]], used)
    return AdapterRows(slots, order, starts)
