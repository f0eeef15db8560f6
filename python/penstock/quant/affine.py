"""Converts integers in groups of columns, with scales and zero points or minima, to the smallest
exact form of `Affine`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Matrix

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def affine_from_zero_points(
    bits: Literal[4, 8], group: int, q: Bytes, scale: Floats, zero: Bytes, where: str
) -> Affine:
    """Return the weights w = scale * (q - zero) as an `Affine`.

    - `group`: the columns of a group. The last group of a row may be shorter.
    - `q`: as in `Affine`.
    - `scale`, `zero`: [N, G], one per row and group.

    Raises ModelError that starts with `where` if no form is exact.
    """
    if (zero == zero[0, 0]).all():
        (held,) = narrow_to_float16(scale)
        return Affine(bits, group, q, held, None, int(zero[0, 0]))
    return affine_from_minima(bits, group, q, scale, minimum_of(scale, zero, where))


def affine_from_minima(
    bits: Literal[4, 8], group: int, q: Bytes, scale: Floats, minimum: Floats
) -> Affine:
    """Return the weights w = scale * q + minimum as an `Affine`. `minimum`: [N, G]; for the other
    arguments see `affine_from_zero_points`."""
    held, held_minimum = narrow_to_float16(scale, minimum)
    return Affine(bits, group, q, held, held_minimum)


def narrow_to_float16(*arrays: Floats) -> tuple[npt.NDArray[np.generic], ...]:
    """Return the arrays as float16 if that changes no number in any of them, or else unchanged."""
    with np.errstate(over="ignore"):
        halves = tuple(np.ascontiguousarray(array, np.float16) for array in arrays)
    if all(map(np.array_equal, halves, arrays)):
        return halves
    return tuple(map(np.ascontiguousarray, arrays))


def minimum_of(scale: npt.NDArray[Any], zero: npt.NDArray[Any] | int, where: str) -> Floats:
    """Return the minima -scale * zero as float32. Raises ModelError that starts with `where` if a
    product is not exact in float32."""
    exact = -scale.astype(np.float64) * zero
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    if not np.array_equal(rounded, exact):
        raise ModelError(f"{where}: 24-bit scales with varying zero points are not supported")
    return rounded


def unpack(words: npt.NDArray[np.generic], bits: int) -> Bytes:
    """Unpack 32-bit words [..., n] to integers [..., n * 32 // bits], the lowest bits of a word
    first. An integer may begin in one word and end in the next."""
    stored = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stored
    if 8 % bits == 0:
        low = np.uint8(2**bits - 1)
        parts = [stored >> np.uint8(shift) & low for shift in range(0, 8, bits)]
        return np.stack(parts, axis=-1).reshape(*stored.shape[:-1], -1)
    stream: Bytes = np.unpackbits(stored, axis=-1, bitorder="little")
    count = stream.shape[-1] // bits
    each: Bytes = stream[..., : count * bits].reshape(*stream.shape[:-1], count, bits)
    numbers: Bytes = np.packbits(each, axis=-1, bitorder="little")[..., 0]
    return numbers


def pack_nibbles(numbers: Bytes) -> Bytes:
    """Pack integers [..., n] of at most 4 bits into bytes [..., n / 2], the first in the low
    nibble."""
    packed: Bytes = numbers[..., 0::2] | numbers[..., 1::2] << np.uint8(4)
    return packed


def unify_affine(matrices: Sequence[Matrix], where: str) -> tuple[Matrix, ...]:
    """Convert `matrices` to equal group sizes, equal scale types, and minima in all or none of
    them, so that they fit into one GPU tensor. If one of them is not an `Affine` with one level of
    scales, all are returned unchanged. Raises ModelError as `affine_from_zero_points` does."""
    affine = [one for one in matrices if isinstance(one, Affine) and one.super_scale is None]
    if len(affine) < len(matrices) or len({_form(one) for one in affine}) == 1:
        return tuple(matrices)
    group = math.gcd(*(one.group for one in affine))
    affine = [split_groups(one, group) for one in affine]
    same_zeros = len({(one.minimum is None, one.zero_point) for one in affine}) == 1
    if not same_zeros:
        affine = [_with_minimum(one, where) for one in affine]
    return tuple(map(_in_float32, affine))


def _form(one: Affine) -> tuple[object, ...]:
    return one.group, one.minimum is None, one.zero_point, one.scale.dtype


def _with_minimum(one: Affine, where: str) -> Affine:
    if one.minimum is not None:
        return one
    return replace(one, minimum=minimum_of(one.scale, one.zero_point, where), zero_point=0)


def _in_float32(one: Affine) -> Affine:
    minimum = None if one.minimum is None else one.minimum.astype(np.float32)
    return replace(one, scale=one.scale.astype(np.float32), minimum=minimum)
