"""The rows of a step by the slots of their adapters, as the kernels take them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import AdapterRows

Ints = npt.NDArray[np.int32]
GroupedRows: TypeAlias = "tuple[AdapterRows[Ints], AdapterRows[Ints]]"
"""Of the tokens of a step, and of its sampled rows, in the same groups."""


def group_rows(of_tokens: Ints, of_samples: Ints, num_rows: int) -> GroupedRows | None:
    """Groups from the slot of each token and of each sampled row, negative for none; None where no
    token has one. At most `num_rows` slots occur: so many groups there are, the last ones empty."""
    if of_tokens.max(initial=-1) < 0:
        return None
    used = np.unique(of_tokens)
    used = used[used >= 0]
    slots = np.zeros(num_rows, np.int32)
    slots[: len(used)] = used
    return _grouped(slots, used, of_tokens), _grouped(slots, used, of_samples)


def _grouped(slots: Ints, used: Ints, of_rows: Ints) -> AdapterRows[Ints]:
    ascending = np.argsort(of_rows, kind="stable")
    bare = int(np.count_nonzero(of_rows < 0))  # they come first there, and last in `order`
    order = np.concatenate([ascending[bare:], ascending[:bare]]).astype(np.int32)
    starts = np.full(len(slots) + 1, len(order) - bare, np.int32)
    starts[: len(used)] = np.searchsorted(of_rows[order[: len(order) - bare]], used)
    return AdapterRows(slots, order, starts)
