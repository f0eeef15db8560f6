"""Products of linear layers by the CUDA library, for few rows of bfloat16.

`linear_choice` names the kernel by shape and number of rows. If the library has no form for that
product, or its kernel was declined, Triton's implementation serves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from penstock.kernels.cuda.library import Library
from penstock.kernels.triton import linear as triton_linear
from penstock.kernels.triton.linear_choice import (
    capability_of,
    choose,
    choose_float8,
    float8_capability,
)
from penstock.kernels.triton.packed import PackedDense, PackedFloat8

STREAMED_TOKENS = 64
"""The most rows that the kernel `linear` takes."""

STREAMED_FLOAT8_TOKENS = 16
"""The most rows that the kernel `linear_float8` takes."""


def linear(
    declined: Mapping[str, str],
    library: Library,
    x: torch.Tensor,
    weight: triton_linear.PackedLinear,
) -> torch.Tensor:
    """See `Ops.linear`. `declined` names the kernels that are not to be used."""
    part, *others = weight.parts
    if others or x.dtype != torch.bfloat16:
        return triton_linear.linear(x, weight)
    kernel = None
    if isinstance(part, PackedDense) and part.data.dtype == torch.bfloat16:
        kernel = _dense_kernel(x, part)
    elif isinstance(part, PackedFloat8):
        kernel = _float8_kernel(x, part, weight.invariant)
    if kernel is None or kernel in declined:
        return triton_linear.linear(x, weight)
    out = x.new_empty(len(x), part.shape[0], dtype=weight.result or x.dtype)
    if isinstance(part, PackedDense):
        stream(library, out, x, part.data, weight.bias)
    else:
        assert isinstance(part, PackedFloat8)
        stream_float8(library, out, x, part, weight.bias)
    return out


def _dense_kernel(x: torch.Tensor, part: PackedDense) -> str | None:
    """The library's kernel for a product, None for Triton's implementation."""
    tokens, width = x.shape
    choice = choose(tokens, part.shape, capability_of(x.device)) if x.is_cuda else "stream"
    if choice == "stream" and tokens <= STREAMED_TOKENS and width % 32 == 0:
        return "linear"
    return None


def _float8_kernel(x: torch.Tensor, part: PackedFloat8, invariant: bool) -> str | None:
    """The same for weights in 8-bit floats."""
    tokens, width = x.shape
    choice = choose_float8(tokens, part.shape, float8_capability(x.device), invariant)
    if choice == "widen" and tokens <= STREAMED_FLOAT8_TOKENS and width % 128 == 0:
        return "linear_float8"
    return None


def stream(
    library: Library,
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """`out: [T, N]` bfloat16 or float32 = `x: [T, K]` times `weight: [N, K]`, both bfloat16."""
    (tokens, width), to_float = x.shape, int(out.dtype == torch.float32)
    library.call("linear", out, x, weight, bias, tokens, len(weight), width, to_float)


def stream_float8(
    library: Library,
    out: torch.Tensor,
    x: torch.Tensor,
    part: PackedFloat8,
    bias: torch.Tensor | None,
) -> None:
    """The same for weights in 8-bit floats, widened in registers."""
    (rows, width), to_float = part.shape, int(out.dtype == torch.float32)
    library.call(
        "linear_float8",
        *(out, x, part.codes, part.scale, bias),
        *(len(x), rows, width, part.scale_rows, scale_stride(part), to_float),
    )


def scale_stride(part: PackedFloat8) -> int:
    """From a scale to that of the next 128 columns; 0 if one serves a whole row."""
    return part.scale.shape[1] if part.grouped else 0
