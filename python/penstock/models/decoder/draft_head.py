"""The draft head: the rows of a language-model head for the tokens that drafts are chosen from.

A pass of a drafter reads the whole language-model head for one token, which for a large vocabulary
takes most of its time. The draft head is a second, smaller matrix with the same bits in each row.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Linear
from penstock.quant.weight_slices import linear_rows

Tensor = TypeVar("Tensor")
Ints = npt.NDArray[np.int32]

HeadName: TypeAlias = Literal["whole", "draft"]
"""The language-model head that computes logits: of all tokens, or of those of the draft head."""


def pack_draft_head(head: Linear, token_ids: Ints | None, ops: Ops[Tensor]) -> Any:
    """Return the rows `token_ids` of the language-model head `head`, packed; None if `token_ids` is
    None."""
    if token_ids is None:
        return None
    return ops.pack_head(linear_rows(head, token_ids.astype(np.intp)))
