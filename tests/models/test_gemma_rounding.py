"""Gemma 4 in 8 bits gives the logits of `transformers` with the same rounded weights.

A float32 model of random weights and the same model in 8 bits disagree widely, which is no fault of
the reader. Queries and keys are normalized per head and scores have no scale of 1 / sqrt(D), so
random norm weights make the softmax nearly one-hot: a small change of a score moves a token's whole
attention to another token. In the mixture of experts the changed hidden state then selects other
experts. So a comparison across roundings can say nothing about a random model, and the comparison
here rounds both sides alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from gemma_export import ALWAYS_F32, export
from gemma_models import build

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}
Q8_0 = gguf.GGMLQuantizationType.Q8_0
PLAIN = ("router.proj", *ALWAYS_F32)
"""Parts of the names of matrices that stay float32."""


@torch.no_grad()
def round_matrices(model: Any) -> None:
    """Round the matrices of a model as Q8_0 does."""
    for name, values in model.state_dict().items():
        if values.ndim < 2 or any(part in name for part in PLAIN):
            continue
        packed = gguf.quants.quantize(values.numpy(), Q8_0)
        values.copy_(torch.from_numpy(gguf.quants.dequantize(packed, Q8_0)))


@torch.no_grad()
def expected_logits(model: Any) -> torch.Tensor:
    return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize("case", ["gemma4 e2b", "gemma4 31b", "gemma4 26b"])
def test_8_bits_are_exact_against_the_same_rounded_weights(case: str, tmp_path: Path) -> None:
    sizes = {"moe_intermediate_size": 64} if case == "gemma4 26b" else {}
    model = build(case, **sizes)
    export(model, tmp_path / "m.gguf", "Q8_0")
    plain = expected_logits(model)
    round_matrices(model)
    logits = Stepper(*load_decoder(tmp_path / "m.gguf", "f32")).step({0: PROMPT}, all_rows=True)
    rounded = expected_logits(model)
    torch.testing.assert_close(logits, rounded, **TOLERANCE)
    assert (plain - rounded).abs().max() > 100 * TOLERANCE["atol"], "the rounding must be visible"
