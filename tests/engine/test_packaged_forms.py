"""The types packaged for GGUF files are those that their matrices become on a GPU, alone and as
experts."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from penstock.kernels.triton.matmul.packed_weights import PackedAffine, pack_matrix
from penstock.kernels.triton.moe.packed_experts import AffineStack, pack_experts
from penstock.kernels.weights import Affine, Experts
from penstock.quant.gguf.ggml_types import TYPES

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.triton.compile import packaged_signatures

ROWS, WIDTH = 3, 512


def _form(packed: PackedAffine | AffineStack) -> tuple[object, ...]:
    shapes = tuple(packed.q.shape), tuple(packed.scale.shape)
    types = packed.q.dtype, packed.scale.dtype
    return (*shapes, *types, packed.bits, packed.group, packed.zero_point, packed.minimum is None)


def _matrix(kind: str, rows: int, width: int) -> Affine:
    columns, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.zeros(rows * width // columns * block_bytes, np.uint8)
    matrix = TYPES[kind].convert(raw, (rows, width))
    assert isinstance(matrix, Affine)
    return matrix


@pytest.mark.parametrize("kind", packaged_signatures.INTEGERS)
def test_a_type_is_packaged_in_its_gpu_layout(kind: str) -> None:
    held = pack_matrix(_matrix(kind, ROWS, WIDTH), "cpu", torch.bfloat16)
    assert isinstance(held, PackedAffine)
    assert _form(packaged_signatures.INTEGERS[kind].packed(ROWS, WIDTH)) == _form(held)


@pytest.mark.parametrize("kind", packaged_signatures.INTEGERS)
def test_experts_are_packaged_in_their_gpu_layout(kind: str) -> None:
    inner, outer = _matrix(kind, WIDTH, WIDTH), _matrix(kind, WIDTH, WIDTH)
    held = pack_experts(Experts((inner,) * 3, (inner,) * 3, (outer,) * 3), "cpu", torch.bfloat16)
    stacks = (*held.gate_up, held.down)
    expected = [
        packaged_signatures.INTEGERS[kind].stacked(3, rows, WIDTH) for rows in (2 * WIDTH, WIDTH)
    ]
    assert [_form(one) for one in expected] == [_form(one) for one in stacks]  # type: ignore[arg-type]


def test_minima_beyond_float16_are_exact() -> None:
    """Also beside scales of float16."""
    scale = np.full((1, 1), 1.5, np.float16)
    minimum = np.full((1, 1), 1 + 2.0**-20, np.float32)
    packed = pack_matrix(Affine(4, 32, np.zeros((1, 16), np.uint8), scale, minimum), "cpu")
    assert isinstance(packed, PackedAffine) and packed.minimum is not None
    assert packed.minimum.item() == minimum.item() and packed.scale.item() == 1.5
