"""What is packaged for types of GGUF files is what matrices of those types become on a GPU."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from penstock.kernels.triton.packed import PackedAffine, pack_matrix
from penstock.quant.ggml_blocks import CONVERTERS

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.triton import shipped

ROWS, WIDTH = 3, 512


def _form(packed: PackedAffine) -> tuple[object, ...]:
    shapes = tuple(packed.q.shape), tuple(packed.scale.shape)
    types = packed.q.dtype, packed.scale.dtype
    return (*shapes, *types, packed.bits, packed.group, packed.zero_point, packed.minimum is None)


@pytest.mark.parametrize("kind", shipped.INTEGERS)
def test_a_type_is_packaged_as_it_is_held(kind: str) -> None:
    columns, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.zeros(ROWS * WIDTH // columns * block_bytes, np.uint8)
    held = pack_matrix(CONVERTERS[kind](raw, (ROWS, WIDTH)), "cpu", torch.bfloat16)
    assert isinstance(held, PackedAffine)
    assert _form(shipped.INTEGERS[kind].packed(ROWS, WIDTH)) == _form(held)
