"""The rope table of every scaling equals that of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from penstock.models.decoder.rope import identity_table, rope_table
from penstock.models.decoder.rope_spec import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)

POSITIONS = 300
YARN_FACTOR = 0.1 * np.log(4.0) + 1

CASES: list[tuple[dict[str, Any], RopeScaling | None]] = [
    ({"rope_type": "default"}, None),
    ({"rope_type": "linear", "factor": 3.0}, LinearScaling(3.0)),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        Llama3Scaling(8.0, 1.0, 4.0, 128),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        YarnScaling(4.0, 128, YARN_FACTOR),
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.7,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
        YarnScaling(4.0, 128, 0.7, 16.0, 2.0, truncate=False),
    ),
]


def config_of(rope: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        head_dim=64,
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 50_000.0, **rope},
    )


@pytest.mark.parametrize(("rope", "scaling"), CASES)
def test_cosines_and_sines_are_those_of_transformers(
    rope: dict[str, Any], scaling: RopeScaling | None
) -> None:
    positions = torch.arange(POSITIONS)[None]
    cos, sin = LlamaRotaryEmbedding(config_of(rope))(torch.empty(1), positions)
    table = rope_table(RopeSpec(50_000.0, 64, scaling), POSITIONS)
    np.testing.assert_allclose(table[:, :32], cos[0, :, :32].numpy(), atol=5e-5)
    np.testing.assert_allclose(table[:, 32:], sin[0, :, :32].numpy(), atol=5e-5)


@pytest.mark.parametrize(("rope", "scaling"), CASES[1:])
def test_partial_rotation_scales_only_the_rotated_part(
    rope: dict[str, Any], scaling: RopeScaling | None
) -> None:
    config = config_of({**rope, "partial_rotary_factor": 0.5})
    frequencies, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    table = rope_table(RopeSpec(50_000.0, 32, scaling), 2)
    assert table.shape == (2, 32)
    amplitude = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
    expected = amplitude * np.sin(frequencies.numpy())
    np.testing.assert_allclose(table[1, 16:], expected, rtol=1e-6)


def test_an_identity_table_does_not_rotate() -> None:
    assert identity_table(3).tolist() == [[1, 0]] * 3
