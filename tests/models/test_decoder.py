"""Every architecture, with small random weights, gives the logits of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder

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
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

GEMMA3 = {
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 5,
    "query_pre_attn_scalar": 32,
    "tie_word_embeddings": True,
}

# A large eps, because the residual multiplier is squared in it.
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "rms_norm_eps": 0.05,
}

# transformers chooses the factors by the prompt's length, Penstock by the served context.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 40.0],
}
BEYOND = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 4}
WITHIN = {
    "rope_parameters": LONGROPE,
    "original_max_position_embeddings": 256,
    "max_position_embeddings": 1024,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama of one layer": ("Llama", {"num_hidden_layers": 1}),
    "llama with wide heads": ("Llama", {"head_dim": 48}),
    "llama with one kv head": ("Llama", {"num_key_value_heads": 1}),
    "llama with llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama with linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama with yarn rope": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 with a window from layer 1": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2 with yarn rope": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 with biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "granite": ("Granite", GRANITE),
    "granite tied, with biases": (
        "Granite",
        GRANITE | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "phi3": ("Phi3", {}),
    "phi3 tied, with a window and partial rotation": (
        "Phi3",
        {
            "tie_word_embeddings": True,
            "sliding_window": 7,
            "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.75},
        },
    ),
    "phi3 beyond the context that it was trained for": ("Phi3", BEYOND),
    "phi3 within the context that it was trained for": ("Phi3", WITHIN),
    "glm": ("Glm", {"head_dim": 32, "num_key_value_heads": 1}),
    "glm4": ("Glm4", {"head_dim": 16}),
    "glm4 tied, without biases, rotated as a whole": (
        "Glm4",
        {
            "head_dim": 32,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0},
        },
    ),
    "ernie4_5": ("Ernie4_5", {"head_dim": 32}),
    "ernie4_5 tied, with biases": (
        "Ernie4_5",
        {"head_dim": 16, "tie_word_embeddings": True, "use_bias": True},
    ),
    "seed_oss": ("SeedOss", {"head_dim": 32}),
    "seed_oss with other biases": (
        "SeedOss",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    ),
    "helium": ("Helium", {"head_dim": 16}),
    "helium with biases": ("Helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "ministral": ("Ministral", {"head_dim": 32, "sliding_window": 7}),
    "ministral with windows in some layers": (
        "Ministral",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "gemma3": ("Gemma3", GEMMA3),
    "gemma3 with linear rope, a scale of its own and an untied head": (
        "Gemma3",
        GEMMA3
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": LINEAR,
            },
            "query_pre_attn_scalar": 48,
            "tie_word_embeddings": False,
        },
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, float32 model) of one case, with weights large enough to expose errors."""
    name, options = CASES[request.param]
    config_name = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**(SMALL | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, model


@torch.no_grad()
def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def test_prefill_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    stepper = Stepper(*load_decoder(folder))
    logits = stepper.step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_decode_after_a_chunked_prompt_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(folder))
    stepper.step({0: PROMPT[:6]})
    stepper.step({0: PROMPT[6:18]})
    for position in range(18, len(PROMPT)):
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


def test_older_rope_keys_give_the_same_spec(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    rope = written.pop("rope_parameters")
    written["rope_theta"] = rope.pop("rope_theta")
    written["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    (tmp_path / "config.json").write_text(json.dumps(written))
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_f32_mode_computes_with_the_exact_values_of_half_weights(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to(dtype).eval()
    model.save_pretrained(tmp_path)
    logits = Stepper(*load_decoder(tmp_path, "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model.float(), PROMPT), **TOLERANCE)
