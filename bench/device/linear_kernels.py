"""Linear products by each kernel of the CUDA library, and their expected results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.device.machine import Bench
from penstock.kernels.cuda import Library
from penstock.kernels.cuda import linear as cuda_linear
from penstock.kernels.triton.matmul.packed_weights import PackedDense, PackedFloat8

Calls = dict[str, Callable[[], torch.Tensor]]


def own_calls(bench: Bench, x: torch.Tensor, packed: Any) -> Calls:
    """Return the products by kernel name, for each kernel of the CUDA library that supports this
    number of rows and passed the trial, regardless of the tuning table."""
    library = getattr(bench.ops, "library", None)
    if not isinstance(library, Library):
        return {}
    part: PackedDense | PackedFloat8 = packed.parts[0]

    def made(kernel: Callable[..., None]) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            out = x.new_empty(len(x), part.shape[0])
            kernel(library, out, x, part, None)
            return out

        return call

    streams: dict[type, tuple[str, Callable[..., None], int]] = {
        PackedDense: ("linear", cuda_linear.stream, cuda_linear.STREAMED_TOKENS),
        PackedFloat8: (
            "linear_float8",
            cuda_linear.stream_float8,
            cuda_linear.STREAMED_FLOAT8_TOKENS,
        ),
    }
    kernels = (
        streams[type(part)],
        ("staged_linear", cuda_linear.stage, cuda_linear.STAGED_TOKENS),
    )
    return {
        name: made(kernel)
        for name, kernel, most in kernels
        if len(x) <= most and name not in bench.ops.rejected
    }


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute [T, K] x [N, K] in float32, one part of the weight at a time."""
    return torch.cat([x.float() @ part.float().t() for part in weight.split(16384)], dim=1)


def float8_product(x: torch.Tensor, part: PackedFloat8) -> torch.Tensor:
    """Compute the same for float8 weights: [T, K] x [N, K]."""
    (rows, width), codes = part.shape, part.codes.view(torch.float8_e4m3fn)
    scale = part.scale.repeat_interleave(part.scale_rows, 1)[:, :rows]
    spread = scale.repeat_interleave(128, 0)[:width] if part.grouped else scale
    return x.float() @ (codes.float().t() * spread)
