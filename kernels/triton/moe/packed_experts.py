"""The weights of a layer's experts as the Triton kernels read them. A stack is one tensor with the
same matrix of all experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.triton.matmul.packed_weights import (
    Packed,
    PackedAffine,
    PackedDense,
    PackedFloat8,
    in_float8,
    pack_matrix,
)
from penstock.kernels.weights import ExpertActivation, Experts, Matrix, SharesScale


@dataclass(frozen=True, slots=True)
class DenseStack:
    """Dense weights of all experts. `data: [E, N, C]` in float32, float16 or bfloat16."""

    data: torch.Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        count, rows, width = self.data.shape
        return count, rows, width


@dataclass(frozen=True, slots=True)
class AffineStack:
    """Affine integer weights of all experts: the fields of `PackedAffine`, with a leading dimension
    E in each tensor."""

    q: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    bits: int
    group: int
    zero_point: int

    @property
    def shape(self) -> tuple[int, int, int]:
        count, rows, stored = self.q.shape
        return count, rows, stored * 8 // self.bits


@dataclass(frozen=True, slots=True)
class Float8Stack:
    """Weights of all experts in 8-bit floats: the fields of `PackedFloat8`, with a leading
    dimension E in each tensor."""

    codes: torch.Tensor
    scale: torch.Tensor
    scale_rows: int
    grouped: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        count, rows, width = self.codes.shape
        return count, rows, width


Stack: TypeAlias = "DenseStack | AffineStack | Float8Stack"


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """The packed experts of a layer.

    `gate_up`: one stack [E, 2 F, W], or two stacks [E, F, W] if gate and up are stored in different
    formats; one stack [E, F, W] without gates.
    `down`: the stack [E, W, F].
    `invariant`: use one tile for any number of rows.
    `gate_up_bias`, `down_bias`: float32 or None, as in `Experts`.
    """

    gate_up: tuple[Stack, ...]
    down: Stack
    invariant: bool = False
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    activation: ExpertActivation = "silu"
    shares_scale: SharesScale = "output"


def pack_experts(weights: Experts, device: str, dtype: torch.dtype) -> PackedExperts:
    """Return the experts packed on the device. Raises ValueError if experts of the layer are stored
    in different formats."""
    up, down = (_stack(matrices, device, dtype) for matrices in (weights.up, weights.down))
    gate_up: tuple[Stack, ...] = (up,)
    if weights.gate:
        gate_up = _merged(_stack(weights.gate, device, dtype), up)
    opening, closing = (
        None if bias is None else tensor_of(bias).float().to(device)
        for bias in (weights.gate_up_bias, weights.down_bias)
    )
    return PackedExperts(
        gate_up,
        down,
        gate_up_bias=opening,
        down_bias=closing,
        activation=weights.activation,
        shares_scale=weights.shares_scale,
    )


def rounded_to_float8(weights: PackedExperts) -> PackedExperts:
    """Return the experts with their dense stacks rounded to 8-bit floats, with a scale per row."""
    down, *gate_up = (
        _in_float8(stack) if isinstance(stack, DenseStack) else stack
        for stack in (weights.down, *weights.gate_up)
    )
    merged = _merged(*gate_up) if len(gate_up) == 2 else tuple(gate_up)
    return replace(weights, gate_up=merged, down=down)


def _in_float8(stack: DenseStack) -> Float8Stack:
    count, rows, width = stack.shape
    part = in_float8(PackedDense(stack.data.view(count * rows, width)))
    scale = part.scale.view(count, 1, rows)
    return Float8Stack(part.codes.view(count, rows, width), scale, part.scale_rows, part.grouped)


def _stack(matrices: Sequence[Matrix], device: str, dtype: torch.dtype) -> Stack:
    packed = [pack_matrix(matrix, device, dtype) for matrix in matrices]
    first = packed[0]
    if len({_kind(one) for one in packed}) > 1:
        raise ValueError("the experts of a layer are stored in different kinds")
    if isinstance(first, PackedDense):
        return DenseStack(torch.stack([one.data for one in packed]))  # type: ignore[union-attr]
    if isinstance(first, PackedFloat8):
        eight_bits = [one for one in packed if isinstance(one, PackedFloat8)]
        return Float8Stack(
            torch.stack([one.codes for one in eight_bits]),
            torch.stack([one.scale for one in eight_bits]),
            *(first.scale_rows, first.grouped),
        )
    affine = [one for one in packed if isinstance(one, PackedAffine)]
    minima = [one.minimum for one in affine if one.minimum is not None]
    return AffineStack(
        torch.stack([one.q for one in affine]),
        torch.stack([one.scale for one in affine]),
        torch.stack(minima) if minima else None,
        *(first.bits, first.group, first.zero_point),
    )


def _kind(one: Packed | Stack) -> tuple[object, ...]:
    if isinstance(one, (PackedDense, DenseStack)):
        return (one.data.dtype,)
    if isinstance(one, (PackedFloat8, Float8Stack)):
        return (one.scale_rows, one.grouped)
    return (one.bits, one.group, one.zero_point, one.scale.dtype, one.minimum is None)


def _merged(gate: Stack, up: Stack) -> tuple[Stack, ...]:
    """Merge the stacks of gate and up into one if both are stored in the same format; otherwise
    return both."""
    if _kind(gate) != _kind(up):
        return (gate, up)
    if isinstance(gate, DenseStack) and isinstance(up, DenseStack):
        return (DenseStack(torch.cat((gate.data, up.data), dim=1)),)
    if isinstance(gate, Float8Stack) and isinstance(up, Float8Stack):
        if gate.shape[1] % gate.scale_rows:  # rows of one scale would span both
            return (gate, up)
        codes, scale = torch.cat((gate.codes, up.codes), 1), torch.cat((gate.scale, up.scale), 2)
        return (Float8Stack(codes, scale, gate.scale_rows, gate.grouped),)
    assert isinstance(gate, AffineStack) and isinstance(up, AffineStack)
    minimum = None
    if gate.minimum is not None and up.minimum is not None:
        minimum = torch.cat((gate.minimum, up.minimum), dim=2)
    return (
        AffineStack(
            torch.cat((gate.q, up.q), dim=1),
            torch.cat((gate.scale, up.scale), dim=2),
            minimum,
            *(gate.bits, gate.group, gate.zero_point),
        ),
    )
