"""RMSNorm beside a gate; a program computes one group of one row and keeps it in registers.

The floor is 6 bytes per element in bfloat16: x and the gate are read once, the result is written
once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.kernels.ops.recurrent_rows import GATE_THEN_NORM, NORM_THEN_GATE
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit(do_not_specialize=["eps"])
def gated_norm_kernel(
    out,
    x,
    gate,
    weight,
    eps,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    GATE_FIRST: tl.constexpr,
):
    """Compute rms_norm(x * silu(gate)) * weight if GATE_FIRST, else rms_norm(x) * weight *
    silu(gate), for GROUP columns."""
    group, lane = tl.program_id(1), tl.arange(0, BLOCK)
    inside = lane < GROUP
    place = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + group) * GROUP + lane
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    exponent = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    factors = tl.load(weight + group * GROUP + lane, mask=inside, other=0.0).to(tl.float32)
    gates = exponent / (1.0 + tl.exp(-exponent))
    if GATE_FIRST:
        values *= gates
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / GROUP + eps)
    result = values * scale * factors
    if not GATE_FIRST:
        result *= gates
    tl.store(out + place, result, mask=inside)


def _gated_norm(gate_first: int) -> Callable[..., torch.Tensor]:
    def gated_norm(
        x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, groups: int
    ) -> torch.Tensor:
        """See `Ops.norm_then_gate` and `Ops.gate_then_norm`. All tensors are contiguous."""
        tokens, width = x.shape
        out = torch.empty_like(x)
        block = power_of_two(width // groups)
        launch(
            gated_norm_kernel,
            (tokens, groups),
            *(out, x, gate, weight, eps),
            num_warps=min(max(block // 512, 1), 8),
            GROUP=width // groups,
            BLOCK=block,
            GATE_FIRST=gate_first,
        )
        return out

    return gated_norm


NORM_THEN_GATE.register(Impl("triton", _gated_norm(0), why_not, invariant_kinds=("float",)))
GATE_THEN_NORM.register(Impl("triton", _gated_norm(1), why_not, invariant_kinds=("float",)))
