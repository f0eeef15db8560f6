"""Mixtures of experts with other routers, shared experts or dense layers give the logits of
`transformers`, from a folder and from GGUF."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from gguf_expert_export import export_experts
from random_models import PROMPT, TOLERANCE, expected_logits, random_model

from penstock.base.errors import ModelError
from penstock.models.families.registry import spec_of_folder

GLM = {
    "head_dim": 32,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.7,
}
QWEN = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
ERNIE = {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32}
# A large eps, because the residual multiplier is squared in it.
GRANITE = {
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 48,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "rms_norm_eps": 0.05,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 256,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 40.0],
    "short_mscale": math.sqrt(1 + 1 / 8),
    "long_mscale": math.sqrt(1 + 1 / 8),
}
PHI = {
    "num_local_experts": 6,
    "attention_bias": True,
    "lm_head_bias": True,
    "rope_parameters": LONGROPE,
    "max_position_embeddings": 512,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "glm4 moe": ("Glm4Moe", GLM | {"use_qk_norm": True, "attention_bias": True}),
    "glm4 moe with groups": (
        "Glm4Moe",
        GLM | {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 2},
    ),
    "qwen2 moe": ("Qwen2Moe", QWEN),
    "qwen2 moe with dense layers, without biases": (
        "Qwen2Moe",
        QWEN
        | {
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 2,
        },
    ),
    "ernie4_5 moe": ("Ernie4_5_Moe", ERNIE),
    "ernie4_5 moe in some layers": (
        "Ernie4_5_Moe",
        ERNIE
        | {
            "num_hidden_layers": 5,
            "moe_layer_interval": 2,
            "moe_layer_end_index": 3,
            "moe_num_shared_experts": 0,
        },
    ),
    "granite moe": ("GraniteMoe", GRANITE),
    "granite moe with shared experts": (
        "GraniteMoeShared",
        GRANITE | {"shared_intermediate_size": 32, "tie_word_embeddings": True},
    ),
    "phimoe": ("Phimoe", PHI),
    "phimoe of another jitter, without biases": (
        "Phimoe",
        {"num_local_experts": 6, "router_jitter_noise": 0.2, "sliding_window": 7},
    ),
    "hunyuan moe": (
        "HunYuanMoEV1",
        {"num_experts": 8, "moe_topk": 3, "head_dim": 16, "intermediate_size": 48},
    ),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 48}),
}


FOLDERS_ONLY = (
    "qwen2 moe with dense layers, without biases",
    "ernie4_5 moe in some layers",
    "phimoe of another jitter, without biases",
)
"""Cases that llama.cpp's converters do not write."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one torch thread: more only add waiting for such small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("case", [case for case in CASES if case not in FOLDERS_ONLY])
def test_gguf_gives_the_logits_of_transformers(tmp_path: Path, case: str) -> None:
    model = random_model(*CASES[case])
    export_experts(model, tmp_path / "m.gguf")
    logits = Stepper(*load_decoder(tmp_path / "m.gguf")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
DEFAULTS: dict[str, dict[str, Any]] = {
    "DeepseekV2": {"num_experts_per_tok": 6},
    "DeepseekV3": {},
    "Glm4MoeLite": {},
    "Mistral4": {},
    "Glm4Moe": {"head_dim": 128},
    "Qwen2Moe": {},
    "Phimoe": {},
    "HunYuanMoEV1": {},
    "Ernie4_5_Moe": {},
    "Olmoe": {},
    "GraniteMoe": {},
    "GraniteMoeShared": {},
}
"""Model -> the keys that it has no defaults for."""


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_missing_keys_get_the_defaults_of_transformers(tmp_path: Path, name: str) -> None:
    own = DEFAULTS[name]
    config = getattr(transformers, f"{name}Config")(architectures=[f"{name}ForCausalLM"], **own)
    config.save_pretrained(tmp_path)
    written = spec_of_folder(tmp_path)
    path = tmp_path / "config.json"
    keys = json.loads(path.read_text())
    kept = (*SIZES, "vocab_size", "architectures", *own)
    path.write_text(json.dumps({key: keys[key] for key in kept}))
    assert spec_of_folder(tmp_path) == written


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Qwen2Moe", {"shared_expert_intermediate_size": None}, "intermediate_size is missing"),
        ("Qwen2Moe", {"shared_expert_intermediate_size": -4}, "intermediate_size -4 is negative"),
        ("Qwen2Moe", {"decoder_sparse_step": 0}, "decoder_sparse_step 0 is not positive"),
        ("Glm4Moe", {"n_group": 3}, "n_group 3 does not divide 128 experts"),
        ("Glm4Moe", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("Phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok 3 is not supported, only 2"),
        ("Phimoe", {"router_jitter_noise": -1.0}, "router_jitter_noise -1.0 is not in"),
        (
            "Phimoe",
            {"rope_scaling": LONGROPE | {"long_mscale": 2.0}},
            "other than long_mscale 2.0 is not supported",
        ),
        ("HunYuanMoEV1", {"moe_topk": [1, 2]}, r"moe_topk \[1, 2\] is not supported"),
        ("HunYuanMoEV1", {"num_experts": []}, r"num_experts \[\] is not supported"),
        ("HunYuanMoEV1", {"moe_intermediate_size": [3, 3]}, "is not supported, only 11008"),
        ("Ernie4_5_Moe", {"use_bias": True}, "use_bias true is not supported"),
        ("Ernie4_5_Moe", {"moe_layer_interval": 0}, "moe_layer_interval 0 is not positive"),
        ("Ernie4_5_Moe", {"moe_num_shared_experts": -1}, "moe_num_shared_experts -1 is negative"),
        ("Ernie4_5_Moe", {"moe_k": 0}, "experts of a token 0 is not in"),
        ("Olmoe", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported"),
        ("GraniteMoe", {"shared_intermediate_size": -2}, "width of the shared experts -2"),
        ("Mistral4", {"topk_group": 2}, "topk_group 2 is not in 1..1"),
        (
            "Mistral4",
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "llama_4_scaling_beta": 0.1}},
            "original_max_position_embeddings None is not positive",
        ),
        ("Glm4MoeLite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types has 1 entries for 47"),
        ("Glm4MoeLite", {"mlp_layer_types": ["wide"] * 47}, r"mlp_layer_types: \['wide'\] are not"),
    ],
)
def test_a_key_that_does_not_fit_is_named(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    config = getattr(transformers, f"{name}Config")(architectures=[f"{name}ForCausalLM"])
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message) as raised:
        spec_of_folder(tmp_path)
    assert str(path) in str(raised.value)
