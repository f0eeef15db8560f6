"""A GPU holds the odd integers of IQ1 and IQ3_S in 4 bits, with the same values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.kernels.regroup import has_half_steps
from penstock.kernels.triton.matmul.packed_weights import PackedAffine, pack_matrix
from penstock.kernels.weights import Affine
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.ggml_types import TYPES

HALVED = ("IQ1_S", "IQ1_M", "IQ3_S")


def converted(name: str) -> Affine:
    kind = TYPES[name]
    raw = np.random.default_rng(0).integers(0, 0x78, 16 * kind.size_bytes, np.uint8)
    matrix = kind.convert(raw, (8, 2 * kind.block))
    assert isinstance(matrix, Affine)
    return matrix


@pytest.mark.parametrize("name", HALVED)
def test_four_bits_have_the_same_values(name: str) -> None:
    matrix = converted(name)
    packed = pack_matrix(matrix, "cpu")
    assert isinstance(packed, PackedAffine) and packed.bits == 4 and packed.minimum is not None
    q = torch.stack([packed.q & 15, packed.q >> 4], -1).flatten(1).double()
    scale, minimum = (
        one.T.double().repeat_interleave(packed.group, 1) for one in (packed.scale, packed.minimum)
    )
    values = (q * scale + minimum).float()
    np.testing.assert_array_equal(values.numpy(), dequantize(matrix))
    bits = 8 * sum(one.nbytes for one in (packed.q, packed.scale, packed.minimum)) / q.numel()
    assert bits == TYPES[name].held_bits("gpu")


NUMBERS = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")


@pytest.mark.parametrize("name", [name for name in TYPES if name not in (*HALVED, *NUMBERS)])
def test_other_types_keep_their_bits(name: str) -> None:
    kind = TYPES[name]
    raw = np.random.default_rng(0).integers(0, 0x78, 16 * kind.size_bytes, np.uint8)
    matrix = kind.convert(raw, (8, 2 * kind.block))
    assert isinstance(matrix, Affine)
    packed = pack_matrix(matrix, "cpu")
    assert isinstance(packed, PackedAffine) and packed.bits == matrix.bits


def test_one_other_integer_is_found() -> None:
    matrix = converted("IQ3_S")
    assert has_half_steps(matrix)
    for value in (1, 17, 32, 128):
        q = matrix.q.copy()
        q[-1, -1] = value
        assert not has_half_steps(replace(matrix, q=q))
    assert not has_half_steps(replace(matrix, zero_point=16))
