"""The declarations of all ops, a family a file. Imports torch; a CPU server does not come here."""

from __future__ import annotations

from penstock.kernels.ops.activation import GELU, GELU_MUL, GELU_TANH_MUL, SILU_MUL, TANH
from penstock.kernels.ops.adjust import ADJUST_LOGITS
from penstock.kernels.ops.adjust_rows import ADJUST_ROWS
from penstock.kernels.ops.attention import ATTENTION, BIDIRECTIONAL_ATTENTION
from penstock.kernels.ops.embedding import EMBEDDING
from penstock.kernels.ops.experts import EXPERTS, ROUTE_EXPERTS
from penstock.kernels.ops.gather import GATHER_ROWS
from penstock.kernels.ops.layer_norm import ADD_LAYER_NORM, LAYER_NORM
from penstock.kernels.ops.linear import LINEAR
from penstock.kernels.ops.lora import LORA
from penstock.kernels.ops.norm import ADD_RMS_NORM, RMS_NORM
from penstock.kernels.ops.persistent_batch import APPEND_TOKENS, PREPARE_STEP, UPDATE_ROWS
from penstock.kernels.ops.pooling import L2_NORMALIZE, MEAN_ROWS
from penstock.kernels.ops.rope_cache import ROPE_CACHE
from penstock.kernels.ops.sampling import SAMPLE, TOP_LOGPROBS
from penstock.kernels.registry import Op


def all_ops() -> tuple[Op, ...]:
    """Every op, in the order of a decoder's step, then those of encoders and of a device's rows."""
    return (
        EMBEDDING,
        RMS_NORM,
        LINEAR,
        LORA,
        ROPE_CACHE,
        ATTENTION,
        ADD_RMS_NORM,
        SILU_MUL,
        GELU_TANH_MUL,
        ROUTE_EXPERTS,
        EXPERTS,
        GATHER_ROWS,
        ADJUST_LOGITS,
        SAMPLE,
        TOP_LOGPROBS,
        LAYER_NORM,
        ADD_LAYER_NORM,
        BIDIRECTIONAL_ATTENTION,
        GELU,
        GELU_MUL,
        TANH,
        MEAN_ROWS,
        L2_NORMALIZE,
        UPDATE_ROWS,
        PREPARE_STEP,
        ADJUST_ROWS,
        APPEND_TOKENS,
    )
