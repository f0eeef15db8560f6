"""The declarations of all ops, a family a file. Imports torch; a CPU server does not come here."""

from __future__ import annotations

from penstock.kernels.op import Op
from penstock.kernels.ops.activation import SILU_MUL
from penstock.kernels.ops.adjust import ADJUST_LOGITS
from penstock.kernels.ops.attention import ATTENTION
from penstock.kernels.ops.embedding import EMBEDDING
from penstock.kernels.ops.gather import GATHER_ROWS
from penstock.kernels.ops.linear import LINEAR
from penstock.kernels.ops.norm import ADD_RMS_NORM, RMS_NORM
from penstock.kernels.ops.rope_cache import ROPE_CACHE
from penstock.kernels.ops.sampling import SAMPLE, TOP_LOGPROBS


def all_ops() -> tuple[Op, ...]:
    """Every op, in the order of a decoder's step."""
    return (
        EMBEDDING,
        RMS_NORM,
        LINEAR,
        ROPE_CACHE,
        ATTENTION,
        ADD_RMS_NORM,
        SILU_MUL,
        GATHER_ROWS,
        ADJUST_LOGITS,
        SAMPLE,
        TOP_LOGPROBS,
    )
