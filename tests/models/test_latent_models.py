"""Models with latent attention give the logits of `transformers`, from a folder and from GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from random_models import PROMPT, TOLERANCE, expected_logits, random_model

MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 40,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
LITE = MLA | {"q_lora_rank": None, "first_k_dense_replace": 1}
GROUPS = {"n_group": 4, "topk_group": 2}
V3 = MLA | GROUPS | {"first_k_dense_replace": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v2 lite": ("DeepseekV2", LITE),
    "deepseek v2 with yarn": ("DeepseekV2", MLA | {"rope_parameters": YARN}),
    "deepseek v2 with groups": (
        "DeepseekV2",
        MLA | GROUPS | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
    ),
    "deepseek v3": ("DeepseekV3", V3),
    "deepseek v3 with yarn and biases": (
        "DeepseekV3",
        V3 | {"rope_parameters": YARN | {"mscale": 1.0}, "attention_bias": True},
    ),
    "deepseek v3 rotated by halves": (
        "DeepseekV3",
        V3 | {"rope_interleave": False, "norm_topk_prob": False},
    ),
    "kimi k2": ("DeepseekV3", MLA | {"n_group": 1, "topk_group": 1, "num_mtp_layers": 0}),
    "glm4 moe lite": ("Glm4MoeLite", MLA),
    "glm4 moe lite with dense layers": (
        "Glm4MoeLite",
        MLA | {"mlp_layer_types": ["sparse", "dense", "sparse"], "n_shared_experts": 1},
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, float32 model) of one case."""
    model = random_model(*CASES[request.param])
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, model


def test_a_folder_gives_the_logits_of_transformers(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_chunks_and_batches_give_the_logits_of_transformers(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(folder), sequences=2)
    stepper.step({0: PROMPT[:9], 1: PROMPT[:4]})
    logits = stepper.step({1: PROMPT[4:6], 0: PROMPT[9:22]})
    torch.testing.assert_close(logits[0], expected[5], **TOLERANCE)
    torch.testing.assert_close(logits[1], expected[21], **TOLERANCE)
    logits = stepper.step({0: PROMPT[22:]})
    torch.testing.assert_close(logits[0], expected[22], **TOLERANCE)
