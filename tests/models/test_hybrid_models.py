"""Every hybrid architecture, with small random weights, gives the logits of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from hybrid_models import (
    CONV_EXPERTS,
    DELTA,
    EXPERTS,
    FALCON,
    GRANITE,
    MAMBA,
    MULTIPLIERS,
    NEMOTRON,
    OLMO,
    PLAIN_DELTA,
    PROMPT,
    SHORT_CONV,
    expected_logits,
    save,
)
from safetensors.torch import load_file, save_file

ATTENTION_NORM = "post_attention_layernorm"
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5", DELTA),
    "qwen3_5 tied, with as many key heads as value heads": (
        "Qwen3_5",
        DELTA | {"tie_word_embeddings": True, "linear_num_key_heads": 4},
    ),
    "qwen3_5 with biases in attention, which is the first layer": (
        "Qwen3_5",
        DELTA
        | {"attention_bias": True, "num_hidden_layers": 2}
        | {"layer_types": ["full_attention", "linear_attention"]},
    ),
    "qwen3_5 moe": ("Qwen3_5Moe", DELTA | EXPERTS),
    "qwen3_next": ("Qwen3Next", PLAIN_DELTA | EXPERTS),
    "qwen3_next with three heads per group and dense layers": (
        "Qwen3Next",
        PLAIN_DELTA
        | EXPERTS
        | {"linear_num_value_heads": 6, "mlp_only_layers": [1], "norm_topk_prob": False},
    ),
    "lfm2": ("Lfm2", SHORT_CONV),
    "lfm2 tied, with biases and more taps": (
        "Lfm2",
        SHORT_CONV | {"tie_word_embeddings": True, "conv_bias": True, "conv_L_cache": 4},
    ),
    "lfm2 with a feed-forward of two thirds": (
        "Lfm2",
        SHORT_CONV | {"block_auto_adjust_ff_dim": True, "block_multiple_of": 16},
    ),
    "lfm2 moe": ("Lfm2Moe", SHORT_CONV | CONV_EXPERTS),
    "lfm2 moe without a bias, its shares not divided but scaled": (
        "Lfm2Moe",
        SHORT_CONV
        | CONV_EXPERTS
        | {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5}
        | {"num_dense_layers": 0},
    ),
    "granite 4": ("GraniteMoeHybrid", MAMBA | GRANITE),
    "granite 4 with one group, rotary, with biases, tied": (
        "GraniteMoeHybrid",
        MAMBA
        | GRANITE
        | {"mamba_n_groups": 1, "mamba_proj_bias": True, "attention_bias": True}
        | {"position_embedding_type": "rope", "tie_word_embeddings": True},
    ),
    "granite 4 without experts": ("GraniteMoeHybrid", MAMBA | GRANITE | {"num_local_experts": 0}),
    "granite 4 without mamba or experts": (
        "GraniteMoeHybrid",
        MAMBA
        | GRANITE
        | {"num_local_experts": 0, "layer_types": ["full_attention"] * 4}
        | {"position_embedding_type": "rope"},
    ),
    "nemotron_h": ("NemotronH", NEMOTRON),
    "nemotron_h without experts, with biases": (
        "NemotronH",
        NEMOTRON
        | {"hybrid_override_pattern": "-M*M", "use_bias": True, "mlp_bias": True}
        | {"time_step_min": 0.2},
    ),
    "nemotron_h with groups of experts": (
        "NemotronH",
        NEMOTRON
        | {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": False},
    ),
    "falcon_h1": ("FalconH1", MAMBA | FALCON),
    "falcon_h1 with multipliers": ("FalconH1", MAMBA | FALCON | MULTIPLIERS),
    "falcon_h1 tied, with a norm before the gate and biases": (
        "FalconH1",
        MAMBA
        | FALCON
        | {"mamba_rms_norm": True, "tie_word_embeddings": True, "mamba_proj_bias": True}
        | {"attention_bias": True, "mlp_bias": True, "projectors_bias": True},
    ),
    "falcon_h1 with a norm after the gate and one group": (
        "FalconH1",
        MAMBA
        | FALCON
        | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 1},
    ),
    "olmo hybrid": ("OlmoHybrid", OLMO),
    "olmo hybrid without positions or negative eigenvalues": (
        "OlmoHybrid",
        OLMO
        | {"linear_allow_neg_eigval": False, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, float32 model) of one case."""
    folder = tmp_path_factory.mktemp("model")
    return folder, save(*CASES[request.param], folder)


def test_prefill_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_decode_after_a_chunked_prompt_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(folder))
    stepper.step({0: PROMPT[:6]})
    stepper.step({0: PROMPT[6:23]})
    for position in range(23, len(PROMPT)):
        logits = stepper.step({0: PROMPT[position : position + 1]})
        torch.testing.assert_close(logits, expected[position : position + 1], **TOLERANCE)


def test_sequences_in_one_step_do_not_affect_each_other(saved: Any) -> None:
    folder, model = saved
    stepper = Stepper(*load_decoder(folder), sequences=3)
    stepper.step({0: PROMPT[:20], 2: PROMPT[5:9]})
    logits = stepper.step({2: PROMPT[9:10], 0: PROMPT[20:21], 1: PROMPT[::-1]})
    expected = [PROMPT[5:10], PROMPT[:21], PROMPT[::-1]]
    for row, tokens in enumerate(expected):
        torch.testing.assert_close(logits[row], expected_logits(model, tokens)[-1], **TOLERANCE)


@pytest.mark.parametrize("form", ["published", "renamed"])
def test_folders_of_olmo_hybrids_may_have_other_names(form: str, tmp_path: Path) -> None:
    """Published ones have the older names in delta nets only, and transformers renames those."""
    model = save("OlmoHybrid", OLMO, tmp_path)
    file = tmp_path / "model.safetensors"
    pre = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": ATTENTION_NORM}
    renamed = {}
    for name, tensor in load_file(file).items():
        block = name.split(".")[-2]
        attends = name.startswith("model.layers.2.")
        if block in pre and (attends or form == "renamed"):
            name = name.replace(block, pre[block])
        renamed[name] = tensor
    save_file(renamed, file, {"format": "pt"})
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)
