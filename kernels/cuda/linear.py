"""Linear layers by the CUDA library, for bfloat16 activations of few tokens.

`linear_choice` selects the kernel by the shape of the weight and the number of tokens. If the
library does not support the product, or its kernel was rejected, Triton's implementation is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from penstock.kernels.cuda.library import Library
from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton.compile.launch import ceil_div
from penstock.kernels.triton.linear_choice import (
    capability_of,
    choose,
    choose_float8,
    float8_capability,
)
from penstock.kernels.triton.matmul import linear as triton_linear
from penstock.kernels.triton.matmul.packed_weights import PackedDense, PackedFloat8
from penstock.kernels.triton.paged_attention.decode_work import multiprocessors

STREAMED_TOKENS = 64
"""The most tokens that the kernel `linear` supports."""

STREAMED_FLOAT8_TOKENS = 16
"""The most tokens that the kernel `linear_float8` supports."""

STAGED_TOKENS = 128
"""The most tokens that the kernel `staged_linear` supports."""

_STAGED_ROWS = 128  # rows of the weight per tile
_STAGE_BYTES = 128  # bytes of a weight row per stage
_LEAST_STAGES = 8  # per block: with fewer, adding the partial sums costs more than the products
_MANY_STAGES = 20  # stages per block from which two blocks per multiprocessor are faster


def linear(
    rejected: Mapping[str, str],
    library: Library,
    x: torch.Tensor,
    weight: triton_linear.PackedLinear,
) -> torch.Tensor:
    """Compute `Ops.linear`, by a kernel of the library if one supports the product. `rejected`:
    kernels that must not be used -> reason."""
    part, *others = weight.parts
    if others or x.dtype != torch.bfloat16:
        return triton_linear.linear(x, weight)
    kernel = None
    if isinstance(part, PackedDense) and part.data.dtype == torch.bfloat16:
        kernel = _dense_kernel(x, part)
    elif isinstance(part, PackedFloat8):
        kernel = _float8_kernel(x, part, weight.invariant)
    if kernel is None or kernel in rejected:
        return triton_linear.linear(x, weight)
    out = x.new_empty(len(x), part.shape[0], dtype=weight.result or x.dtype)
    _KERNELS[kernel](library, out, x, part, weight.bias)
    return out


def _dense_kernel(x: torch.Tensor, part: PackedDense) -> str | None:
    """Return the name of the library's kernel for the product of `x` and dense weights, or None to
    use Triton's implementation."""
    tokens, width = x.shape
    choice = choose(tokens, part.shape, capability_of(x.device) if x.is_cuda else 90)
    if not x.is_cuda and choice != "staged":
        choice = "stream"  # emulated on a CPU: always use the library
    if choice == "stream" and tokens <= STREAMED_TOKENS and width % 32 == 0:
        return "linear"
    if choice == "staged" and tokens <= STAGED_TOKENS and width % 64 == 0:
        return "staged_linear"
    return None


def _float8_kernel(x: torch.Tensor, part: PackedFloat8, invariant: bool) -> str | None:
    """Return the name of the library's kernel for the product of `x` and weights in 8-bit floats,
    or None to use Triton's implementation."""
    tokens, width = x.shape
    if width % FLOAT8_GROUP:
        return None
    choice = choose_float8(tokens, part.shape, float8_capability(x.device), invariant)
    if choice == "widen" and tokens <= STREAMED_FLOAT8_TOKENS:
        return "linear_float8"
    if choice == "staged" and tokens <= STAGED_TOKENS:
        return "staged_linear"
    return None


def stream(
    library: Library,
    out: torch.Tensor,
    x: torch.Tensor,
    part: PackedDense,
    bias: torch.Tensor | None,
) -> None:
    """Compute out = x @ part.T + bias. `out: [T, N]`: bfloat16 or float32; `x: [T, C]` and `part:
    [N, C]`: bfloat16."""
    (rows, width), to_float = part.shape, int(out.dtype == torch.float32)
    library.call("linear", out, x, part.data, bias, len(x), rows, width, to_float)


def stream_float8(
    library: Library,
    out: torch.Tensor,
    x: torch.Tensor,
    part: PackedFloat8,
    bias: torch.Tensor | None,
) -> None:
    """Compute out = x @ part.T + bias like `stream`, for weights in 8-bit floats, which the kernel
    widens in registers."""
    (rows, width), to_float = part.shape, int(out.dtype == torch.float32)
    library.call(
        "linear_float8",
        *(out, x, part.codes, part.scale, bias),
        *(len(x), rows, width, part.scale_rows, _scale_stride(part), to_float),
    )


def stage(
    library: Library,
    out: torch.Tensor,
    x: torch.Tensor,
    part: PackedDense | PackedFloat8,
    bias: torch.Tensor | None,
) -> None:
    """Compute out = x @ part.T + bias like `stream`, for weights in bfloat16 or 8-bit floats and up
    to `STAGED_TOKENS` tokens."""
    (rows, width), tokens = part.shape, len(x)
    if isinstance(part, PackedFloat8):
        weight, scale = part.codes, part.scale
        factors = part.scale_rows, _scale_stride(part)
    else:
        weight, scale, factors = part.data, None, (1, 0)
    tiles = ceil_div(rows, _STAGED_ROWS)
    stages = tiles * (width * weight.element_size() // _STAGE_BYTES)
    blocks = staged_blocks(stages, multiprocessors(x.device))
    padded = max(16, 1 << (tokens - 1).bit_length())
    parts = x.new_empty(2 * blocks * _STAGED_ROWS * padded, dtype=torch.float32)
    library.call(
        "staged_linear",
        *(out, x, weight, scale, bias, parts, _counters(weight, tiles)),
        *(tokens, rows, width, *factors, blocks, int(out.dtype == torch.float32)),
    )


def staged_blocks(stages: int, multiprocessors: int) -> int:
    """Return the number of thread blocks that share `stages` stages. This number does not depend on
    the number of tokens, so the results of a token do not depend on the other tokens."""
    for blocks in (2 * multiprocessors, multiprocessors):
        if stages >= _MANY_STAGES * blocks:
            return blocks
    return max(1, min(multiprocessors, stages // _LEAST_STAGES))


_arrived: dict[int, torch.Tensor] = {}


def _counters(weight: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` int32 counters for a launch with this weight. They are zero before each
    launch, and the launch resets them to zero. Launches with the same weight follow each other on a
    stream; launches with different weights may run at the same time, so each weight has
    counters."""
    found = _arrived.get(weight.data_ptr())
    if found is None or found.device != weight.device or len(found) < count:
        found = torch.zeros(count, dtype=torch.int32, device=weight.device)
        _arrived[weight.data_ptr()] = found
    return found


def _scale_stride(part: PackedFloat8) -> int:
    """Return the distance in elements from the scale of 128 columns to the scale of the next 128
    columns; 0 if a row has a single scale."""
    return part.scale.shape[1] if part.grouped else 0


_KERNELS: dict[str, Callable[..., None]] = {
    "linear": stream,
    "linear_float8": stream_float8,
    "staged_linear": stage,
}
