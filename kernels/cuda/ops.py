"""Implementations of the ops by the CUDA library, registered for one loaded library.

They support bfloat16 activations. A call that no kernel supports (head dimension, width or type)
goes to Triton. The decision depends only on shapes and types, so it is the same in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch

from penstock.kernels.cuda import linear as cuda_linear
from penstock.kernels.cuda.library import Library, Unavailable
from penstock.kernels.gpu_kv_cache import is_token_major
from penstock.kernels.ops.attention import ATTENTION
from penstock.kernels.ops.linear import LINEAR
from penstock.kernels.ops.norm import ADD_RMS_NORM, RMS_NORM
from penstock.kernels.ops.rope_cache import ROPE_CACHE
from penstock.kernels.ops.sampling import SAMPLE
from penstock.kernels.registry import Impl, Machine
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import HeadNorm, LayerCache, StepInputs
from penstock.kernels.triton import norm as triton_norm
from penstock.kernels.triton.compile.launch import OLDEST_CAPABILITY
from penstock.kernels.triton.linear_choice import capability_of
from penstock.kernels.triton.matmul.linear import pack_linear
from penstock.kernels.triton.paged_attention import attention as triton_attention
from penstock.kernels.triton.paged_attention import rope_cache as triton_rope_cache
from penstock.kernels.triton.paged_attention.decode_attention import (
    decode_attention,
    decode_tokens,
    visible_of,
)
from penstock.kernels.triton.paged_attention.decode_work import multiprocessors, work_of
from penstock.kernels.triton.sampler.adjust import adjust_logits
from penstock.kernels.triton.sampler.sampling_operands import sampling_tensors

_ATTENTIONS = ("decode_attention", "prefill_attention")  # for short and for longer chunks
_PRODUCTS = ("linear", "linear_float8", "staged_linear")
_QUERIES = 16  # query rows of a decode tile
_WIDEST_ROW = 32768


def register(library: Library | Unavailable, rejected: Mapping[str, str] | None = None) -> None:
    """Register the library's implementations with the ops. An implementation does not serve if the
    library is unavailable or all kernels of the op are rejected. `rejected`: kernels that must not
    be used -> reason."""
    rejected = rejected or {}
    for op, call, pack, kernels in (
        (RMS_NORM, _rms_norm, None, ("rms_norm",)),
        (ADD_RMS_NORM, _add_rms_norm, None, ("rms_norm",)),
        (ROPE_CACHE, _rope_cache, None, ("rope_cache",)),
        (ATTENTION, partial(_attention, rejected), None, _ATTENTIONS),
        (LINEAR, partial(cuda_linear.linear, rejected), pack_linear, _PRODUCTS),
        (SAMPLE, _sample, None, ("sample",)),
    ):
        reasons = [rejected[kernel] for kernel in kernels if kernel in rejected]
        reason = reasons[0] if len(reasons) == len(kernels) else None
        why_not = partial(_why_not, library, reason)
        loaded = cast("Library", library)  # `why_not` rejects an unavailable library
        op.register(Impl("cuda", partial(call, loaded), why_not, pack))


def _why_not(library: Library | Unavailable, rejected: str | None, machine: Machine) -> str | None:
    if isinstance(library, Unavailable):
        return library.reason
    if rejected is not None:
        return rejected
    if library.emulated:
        return None if machine.device == "cpu" else "the library is emulated, for the CPU"
    if machine.device != "cuda":
        return "needs a CUDA device"
    if machine.capability < OLDEST_CAPABILITY:
        return f"needs compute capability 8.0, not {machine.capability / 10:.1f}"
    return None


def _rms_norm(library: Library, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if not _row_served(x):
        return triton_norm.rms_norm(x, weight, eps)
    tokens, width = x.shape
    out = x.new_empty(tokens, width)  # cheaper than empty_like
    library.call("rms_norm", out, None, x, None, weight, eps, tokens, width)
    return out


def _add_rms_norm(
    library: Library, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if not _row_served(x):
        return triton_norm.add_rms_norm(x, residual, weight, eps)
    tokens, width = x.shape
    out, total = x.new_empty(tokens, width), x.new_empty(tokens, width)
    library.call("rms_norm", out, total, x, residual, weight, eps, tokens, width)
    return out, total


def _row_served(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.shape[1] % 8 == 0 and x.shape[1] <= _WIDEST_ROW


def _rope_cache(
    library: Library,
    qkv: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    head_norm: HeadNorm | None,
) -> torch.Tensor:
    q_heads, kv_heads, dim = heads
    rotated = rope.shape[1]
    if not _cache_served(qkv, cache) or dim > 256 or dim % 8 or rotated % 4:
        return triton_rope_cache.rope_cache(qkv, rope, inputs, cache, heads, head_norm)
    assert is_token_major(cache), "the cache must have the layout of kernels.gpu_kv_cache"
    tokens = qkv.shape[0]
    out = qkv.new_empty(tokens, q_heads * dim)
    weights = (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    library.call(
        "rope_cache",
        *(out, cache.keys, cache.values, qkv, rope, inputs.positions, inputs.slots, *weights),
        *(cache.key_scales, cache.value_scales),
        0.0 if head_norm is None else head_norm.eps,
        *(tokens, q_heads, kv_heads, dim, rotated, cache.values.shape[2]),
        *(cache.keys.stride(0), cache.values.stride(0)),
    )
    return out


def _cache_served(x: torch.Tensor, cache: LayerCache[torch.Tensor]) -> bool:
    scaled = cache.keys.dtype == torch.float8_e4m3fn and cache.key_scales is not None
    return x.dtype == torch.bfloat16 and (scaled or cache.keys.dtype == torch.bfloat16)


_UNSERVED = dict.fromkeys(
    _ATTENTIONS, "they know no caps, no chunks of positions and no tokens that see later tokens"
)


def _attention(
    rejected: Mapping[str, str],
    library: Library,
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    decode: Callable[..., None] = decode_attention
    prompt: Callable[..., None] = triton_attention.prefill_attention
    if softcap or window < 0 or visible_of(inputs, sinks) is not None:
        rejected = {**rejected, **_UNSERVED}
    if "decode_attention" not in rejected and _decode_served(q, cache, heads):
        decode = partial(_decode, library)
    if "prefill_attention" not in rejected and _prompt_served(library, q, cache, heads):
        prompt = partial(_prompt, library)
    return triton_attention.attention(
        q, inputs, cache, heads, scale, window, sinks, softcap, decode, prompt
    )


def _decode_served(
    q: torch.Tensor, cache: LayerCache[torch.Tensor], heads: tuple[int, int, int]
) -> bool:
    block_size = cache.values.shape[2]
    return (
        _cache_served(q, cache)
        and heads[2] in (64, 128)
        and heads[0] // heads[1] <= _QUERIES
        and block_size >= _QUERIES
        and block_size & (block_size - 1) == 0
    )


def _prompt_served(
    library: Library, q: torch.Tensor, cache: LayerCache[torch.Tensor], heads: tuple[int, int, int]
) -> bool:
    """Return whether the library's prefill kernel supports the call. The kernel needs compute
    capability 9.0 for its matrix instructions and TMA."""
    panel = cache.values.shape[2] * heads[2]
    return (
        (library.emulated or capability_of(q.device) == 90)
        and _decode_served(q, cache, heads)
        and cache.keys.stride(0) % panel == 0
        and cache.values.stride(0) % panel == 0
    )


def _decode(
    library: Library,
    out: torch.Tensor,
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> None:
    """Compute `decode_attention`, of scores without a cap, with the kernel of the library."""
    q_heads, kv_heads, dim = heads
    one_token = q.shape[0] == inputs.context_lens.shape[0]
    tokens = 1 if one_token else decode_tokens(heads)
    block_size = cache.values.shape[2]
    work = work_of(inputs, heads, window, tokens, block_size)
    library.call(
        "decode_attention",
        *(out, q, cache.keys, cache.values, cache.key_scales, cache.value_scales, sinks),
        *(inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(work.units, work.count, work.parts, work.stats, work.arrived),
        inputs.block_tables.shape[1],
        *(cache.keys.stride(0), cache.values.stride(0)),
        *(scale / math.log(2), window, tokens * (q_heads // kv_heads)),
        *(q_heads, kv_heads, dim, block_size, work.split, work.multiprocessors),
    )


def _prompt(
    library: Library,
    out: torch.Tensor,
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    shorter: int,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> None:
    """Compute attention, of scores without a cap, for all chunks of more than `shorter` tokens, and
    write the results to `out`."""
    blocks, _, block_size, _ = cache.values.shape
    rows, table_width = inputs.block_tables.shape
    library.call(
        "prefill_attention",
        *(out, q, cache.keys, cache.values, cache.key_scales, cache.value_scales, sinks),
        *(inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(rows, q.shape[0], blocks, table_width),
        *(cache.keys.stride(0), cache.values.stride(0)),
        *(scale / math.log(2), window, shorter),
        *(*heads, block_size, multiprocessors(q.device)),
    )


def _sample(library: Library, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Return the sampled token of each row: [S] int32, as `kernels.sampler_inputs` specifies.
    `logits: [S, V]`: float32, contiguous; Triton first adjusts them in place."""
    barren = adjust_logits(logits, rows) if rows.adjusts else None
    out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    library.call("sample", out, logits, *sampling_tensors(rows, logits.device), *logits.shape)
    return out if barren is None else torch.where(barren == 0, out, barren)
