"""Float16 weights of a tower become bfloat16 if, and only if, no weight changes."""

from __future__ import annotations

import numpy as np
import torch

from penstock.kernels.weights import Dense
from penstock.models.towers.tower_weights import as_bf16


def test_weights_converted_from_bfloat16_are_restored() -> None:
    original = torch.randn(7, 33, generator=torch.Generator().manual_seed(0)) * 0.02
    original[0, :4] = torch.tensor([0.0, -0.0, 1e-5, 40000.0])
    rounded = original.to(torch.bfloat16).to(torch.float16)
    restored = as_bf16(Dense(rounded.numpy(), "f16"))
    assert restored.dtype == "bf16"
    bits = torch.from_numpy(restored.data.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(bits.float(), rounded.float())


def test_weights_that_bfloat16_would_round_stay_float16() -> None:
    matrix = Dense(np.array([[1.0, 1.001]], np.float16), "f16")
    assert as_bf16(matrix) is matrix


def test_weights_of_other_types_stay_as_they_are() -> None:
    matrix = Dense(np.ones((2, 2), np.float32), "f32")
    assert as_bf16(matrix) is matrix
