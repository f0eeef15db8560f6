"""Dense families with norms, blocks or rotations of their own give the logits of `transformers`,
from folders and from GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from gguf_export import export_gguf

from penstock.base.errors import ModelError
from penstock.models.decoder.block_specs import QueryScaling
from penstock.models.families.registry import spec_of_folder

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SLIDING, FULL = "sliding_attention", "full_attention"
KINDS = [SLIDING, FULL, SLIDING, FULL]
WINDOWED = {"num_hidden_layers": 4, "sliding_window": 5, "layer_types": KINDS}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
OLMO3_ROPE = {FULL: YARN, SLIDING: {"rope_type": "default", "rope_theta": 500.0}}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MINISTRAL3 = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("Olmo2", {}),
    "olmo2 tied, with biases and a head per key": (
        "Olmo2",
        {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 4},
    ),
    "olmo3": ("Olmo3", WINDOWED | {"rope_parameters": OLMO3_ROPE}),
    "exaone4": ("Exaone4", WINDOWED | {"head_dim": 32}),
    "exaone4 without windows": (
        "Exaone4",
        {
            "sliding_window": None,
            "layer_types": [FULL] * 3,
            "rope_parameters": LLAMA3,
            "tie_word_embeddings": True,
        },
    ),
    "starcoder2": ("Starcoder2", {}),
    "starcoder2 tied, with a window, without biases": (
        "Starcoder2",
        {"tie_word_embeddings": True, "sliding_window": 7, "use_bias": False},
    ),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 32, "rope_parameters": ALPHA}),
    "hunyuan tied, with biases, not stretched": (
        "HunYuanDenseV1",
        {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "arcee": ("Arcee", {"rope_parameters": YARN}),
    "arcee with biases": ("Arcee", {"attention_bias": True, "mlp_bias": True}),
    "phi": ("Phi", {}),
    "phi rotated as a whole": (
        "Phi",
        {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0}},
    ),
    "gemma": ("Gemma", {"head_dim": 32, "tie_word_embeddings": True}),
    "ministral3": ("Ministral3", {"head_dim": 32, "rope_parameters": MINISTRAL3}),
    "cohere": ("Cohere", {"tie_word_embeddings": True}),
    "cohere untied, with biases": ("Cohere", {"attention_bias": True, "logit_scale": 0.5}),
    "cohere2": ("Cohere2", WINDOWED | {"tie_word_embeddings": True}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm with parallel blocks": ("StableLm", {"use_parallel_residual": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
}


def small_model(name: str, options: dict[str, Any]) -> Any:
    """Return a float32 model with weights large enough to expose errors."""
    config = getattr(transformers, f"{name}Config")(**(SMALL | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


@torch.no_grad()
def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, its logits) of one case."""
    model = small_model(*CASES[request.param])
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, model, expected_logits(model, PROMPT)


def test_prefill_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, _, expected = saved
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected, **TOLERANCE)


def test_chunks_and_decode_beside_another_sequence_give_the_same_logits(saved: Any) -> None:
    folder, model, expected = saved
    stepper = Stepper(*load_decoder(folder), sequences=2)
    stepper.step({0: PROMPT[:6]})
    other = stepper.step({1: PROMPT[::-1], 0: PROMPT[6:20]})[0]
    for position in range(20, len(PROMPT)):
        logits = stepper.step({0: PROMPT[position : position + 1]})
        torch.testing.assert_close(logits[0], expected[position], **TOLERANCE)
    torch.testing.assert_close(other, expected_logits(model, PROMPT[::-1])[-1], **TOLERANCE)


# The case and the keys that llama.cpp's converter adds for it.
GGUF_KEYS: dict[str, dict[str, Any]] = {
    "olmo2": {},
    "olmo3": {
        "olmo2.attention.sliding_window": 5,
        "olmo2.attention.sliding_window_pattern": [True, False, True, False],
        "olmo2.rope.scaling.type": "yarn",
        "olmo2.rope.scaling.factor": 4.0,
        "olmo2.rope.scaling.original_context_length": 64,
    },
    "exaone4": {
        "exaone4.attention.sliding_window": 5,
        "exaone4.attention.sliding_window_pattern": [True, False, True, False],
    },
    "starcoder2": {},
    "starcoder2 tied, with a window, without biases": {"starcoder2.attention.sliding_window": 7},
    "hunyuan": {
        "hunyuan-dense.rope.freq_base": 10000.0 * 50.0 ** (32 / 30),
        "hunyuan-dense.rope.scaling.type": "none",
        "hunyuan-dense.rope.scaling.factor": 1.0,
        "hunyuan-dense.rope.scaling.original_context_length": 262_144,
        "hunyuan-dense.context_length": 262_144,
    },
    "arcee": {
        "arcee.rope.dimension_count": 16,
        "arcee.rope.scaling.type": "yarn",
        "arcee.rope.scaling.factor": 4.0,
        "arcee.rope.scaling.original_context_length": 64,
    },
    "phi": {},
    "gemma": {},
    "ministral3": {
        "mistral3.rope.dimension_count": 32,
        "mistral3.rope.scaling.type": "yarn",
        "mistral3.rope.scaling.factor": 16.0,
        "mistral3.rope.scaling.original_context_length": 8,
        "mistral3.rope.scaling.yarn_log_multiplier": 1.0,
        "mistral3.attention.temperature_scale": 0.5,
    },
    "cohere": {"command-r.logit_scale": 0.0625, "command-r.rope.scaling.type": "none"},
    "cohere2": {
        "cohere2.logit_scale": 0.0625,
        "cohere2.rope.scaling.type": "none",
        "cohere2.rope.dimension_count": 16,
        "cohere2.attention.sliding_window": 5,
        "cohere2.attention.sliding_window_pattern": [True, False, True, False],
    },
    "stablelm": {"stablelm.use_parallel_residual": False},
    "stablelm with parallel blocks": {"stablelm.use_parallel_residual": True},
    "smollm3": {},
}


@pytest.mark.parametrize("case", list(GGUF_KEYS))
def test_gguf_file_gives_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    model = small_model(*CASES[case])
    export_gguf(model, tmp_path / "m.gguf", extra_keys=GGUF_KEYS[case])
    logits = Stepper(*load_decoder(tmp_path / "m.gguf")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


# The model, its options, the keys removed from its file, and the keys added.
EDITED: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "olmo2, its eps and base": ("Olmo2", {}, ("rms_norm_eps", "rope_parameters"), {}),
    "olmo3, layers and rotation in the older spelling": (
        "Olmo3",
        {"num_hidden_layers": 4, "sliding_window": 5},
        ("layer_types", "rope_parameters"),
        {
            "rope_scaling": {k: v for k, v in YARN.items() if k != "rope_theta"},
            "rope_theta": 500_000.0,
        },
    ),
    "exaone4, layers": (
        "Exaone4",
        {"num_hidden_layers": 4, "sliding_window": 5},
        ("layer_types",),
        {},
    ),
    "starcoder2, biases, an eps and a tied head": (
        "Starcoder2",
        {"tie_word_embeddings": True},
        ("use_bias", "norm_epsilon", "tie_word_embeddings", "rope_parameters"),
        {},
    ),
    "phi, its rotation in the older spelling": (
        "Phi",
        {},
        ("rope_parameters", "hidden_act", "layer_norm_eps"),
        {"rope_theta": 500.0, "partial_rotary_factor": 0.25},
    ),
    "gemma, an activation that means another": (
        "Gemma",
        {"head_dim": 32},
        ("rope_parameters",),
        {"hidden_act": "gelu"},
    ),
    "cohere, a base and a scale": (
        "Cohere",
        {},
        ("rope_parameters", "logit_scale", "layer_norm_eps"),
        {},
    ),
    "cohere2, layers": (
        "Cohere2",
        {"num_hidden_layers": 4, "sliding_window": 5},
        ("layer_types", "rope_parameters"),
        {"sliding_window_pattern": 2},
    ),
    "hunyuan, alpha in the older spelling": (
        "HunYuanDenseV1",
        {"head_dim": 32},
        ("rope_parameters",),
        {"rope_scaling": ALPHA | {"type": "dynamic"}},
    ),
    "ministral3, its rotation": ("Ministral3", {"head_dim": 32}, ("rope_parameters",), {}),
    "stablelm, partial rotation": (
        "StableLm",
        {},
        ("rope_parameters", "use_parallel_residual", "use_qkv_bias"),
        {},
    ),
}


@pytest.mark.parametrize("case", list(EDITED))
def test_missing_keys_get_the_defaults_of_the_family(case: str, tmp_path: Path) -> None:
    name, options, lacks, has = EDITED[case]
    small_model(name, options).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in written.items() if k not in lacks} | has))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_language_model_of_a_multimodal_ministral3_has_scaled_queries(tmp_path: Path) -> None:
    text = transformers.Ministral3Config(**SMALL | {"head_dim": 32}).to_dict()
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = spec_of_folder(tmp_path)
    assert spec.architecture == "ministral3"
    scalings = {layer.attention.query_scaling for layer in spec.layers}
    assert scalings == {QueryScaling(0.1, 16_384)}


@pytest.mark.parametrize(("name", "has", "message"), [
    ("Phi", {"qk_layernorm": True}, "qk_layernorm true is not supported"),
    ("Cohere", {"use_qk_norm": True}, "use_qk_norm true is not supported"),
    ("Cohere", {"logit_scale": -1.0}, "logit scale -1.0 is not positive"),
    ("StableLm", {"qk_layernorm": True}, "qk_layernorm true is not supported"),
    ("Exaone4", {"sliding_window_pattern": "LX"}, "sliding_window_pattern 'LX'"),
    ("HunYuanDenseV1", {"rope_scaling": {"type": "dynamic"}}, "dynamic rope scaling"),
    ("HunYuanDenseV1", {"rope_scaling": {"type": "dynamic", "alpha": 0}}, "positive alpha"),
    ("Starcoder2", {"hidden_act": "silu"}, "silu is supported only in a feed-forward with a gate"),
    ("Ministral3", {"rope_scaling": {"llama_4_scaling_beta": -1.0}}, "only as a positive number"),
    ("Olmo2", {"hidden_act": "relu2"}, "relu_squared is supported only without a gate"),
])  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    name: str, has: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = getattr(transformers, f"{name}Config")(**SMALL)
    config.architectures = [f"{name}ForCausalLM"]
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | has))
    with pytest.raises(ModelError, match=message):
        spec_of_folder(tmp_path)
