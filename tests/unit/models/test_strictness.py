"""A missing, unexpected or contradictory tensor or key of a model is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.models.decoder.head_rows import deinterleaved_rows
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import (
    ENCODER_ARCHITECTURES,
    HF_ARCHITECTURES,
    MODEL_TYPES,
    embedding_spec_of_folder,
    is_encoder_folder,
)
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model, load_text_parts
from penstock.models.tokenizer.tokenizer_data import TokenizerFiles

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"]}
GRANITE = {"architectures": ["GraniteForCausalLM"]}
SPEC = DecoderSpec(
    architecture="llama",
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=16,
    norm_eps=1e-6,
    rope=RopeSpec(10_000.0, 8),
    layers=(LayerSpec(),) * 2,
    max_model_len=64,
)


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.ones(shape) for name, shape in expected_shapes(HF_NAMES, SPEC).items()}


def folder(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> ModelFiles:
    (path / "config.json").write_text(json.dumps(config))
    save_file(weights, path / "model.safetensors")
    return ModelFiles("m", "folder", path)


def test_a_complete_folder_loads(tmp_path: Path) -> None:
    model = load_model(folder(tmp_path, CONFIG, tensors()), "auto")
    assert model.spec == SPEC
    layers = list(model.weights.layers())
    assert [layer.qkv.shape for layer in layers] == [(64, 32)] * 2
    assert [layer.gate_up.shape for layer in layers] == [(128, 32)] * 2
    head = model.weights.head()
    assert head is not None and head.shape == (16, 32)


@pytest.mark.parametrize("name", sorted(expected_shapes(HF_NAMES, SPEC)))
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    weights = tensors()
    del weights[name]
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        load_model(folder(tmp_path, CONFIG, weights), "auto")


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "x"]
)
def test_an_unexpected_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"unexpected tensor {name}"):
        load_model(folder(tmp_path, CONFIG, {**tensors(), name: torch.ones(4)}), "auto")


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(ModelError, match=rf"{name} has shape \(32, 16\), expected \(16, 32\)"):
        load_model(folder(tmp_path, CONFIG, {**tensors(), name: torch.ones(32, 16)}), "auto")


def test_computed_tensors_and_copies_of_a_tied_head_are_ignored(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    config = {**CONFIG, "tie_word_embeddings": True}
    model = load_model(folder(tmp_path, config, {**tensors(), **extra}), "auto")
    assert model.weights.head() is None


def test_a_head_that_differs_from_the_embedding_is_not_tied(tmp_path: Path) -> None:
    """transformers 5 does not tie the two either."""
    head = torch.ones(16, 32)
    head[-1, -1] = 2
    config = {**CONFIG, "tie_word_embeddings": True}
    model = load_model(folder(tmp_path, config, {**tensors(), "lm_head.weight": head}), "auto")
    read = model.weights.head()
    assert not model.spec.tied_head and read is not None
    np.testing.assert_array_equal(read.parts[0].data, head.numpy())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["OtherForCausalLM"]}, "OtherForCausalLM is not supported.*Qwen2For"),
        ({"architectures": []}, "neither architectures nor model_type names a model, known are"),
        ({"architectures": None}, "neither architectures nor model_type names a model"),
        (
            {"architectures": [], "model_type": "gpt2"},
            "architectures names none, and model_type 'gpt2' is not supported, known are [A-Z]",
        ),
        (
            {"architectures": ["OtherForCausalLM"], "model_type": "llama"},
            r"OtherForCausalLM is not supported \(model_type 'llama'\), known are",
        ),
        ({"architectures": None, "model_type": "bert"}, "BertModel is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported"),
        ({"logit_scale": 0.0625}, "logit_scale 0.0625 is not supported"),
        ({"logits_scaling": 8.0}, "logits_scaling 8.0 is not supported"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier 12.0 is not supported"),
        ({"residual_multiplier": 0.22}, "residual_multiplier 0.22 is not supported"),
        ({"attention_multiplier": 0.0078125}, "attention_multiplier 0.0078125 is not supported"),
        (GRANITE | {"residual_multiplier": 0.0}, "residual multiplier 0.0 is not in"),
        (GRANITE | {"logits_scaling": -8.0}, "divisor of logits -8.0 is not positive"),
        (
            GRANITE | {"attention_multiplier": -1.0},
            "attention scale must be positive and finite, not -1.0",
        ),
        (GRANITE | {"logit_scale": 0.0625}, "logit_scale 0.0625 is not supported"),
        ({"clip_qkv": 8}, "clip_qkv 8 is not supported"),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "is_causal": False,
                "sliding_window": 8,
            },
            "is_causal false is not supported together with a sliding window",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "missing required field `bits`"),
        ({"quantization_config": {"quant_method": "quark"}}, "quantizes no weights"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": 0}, "width 0"),
        ({"hidden_size": 1 << 40}, "width"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
        ({"num_attention_heads": 0}, "heads 0"),
        ({"num_attention_heads": 5, "head_dim": 8}, "5 heads cannot be divided among 2"),
        ({"head_dim": 7}, "rotary dimension 7 is not an even number in 2..7"),
        ({"vocab_size": -1}, "vocabulary"),
        ({"max_position_embeddings": 1 << 60}, "context length"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0}},
            "longrope rope scaling needs",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1] * 4, "long_factor": [1] * 3}},
            "long must have 4 factors, not 3",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1, 0], "long_factor": [1]}},
            "short 0.0 is not positive",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor -2"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, r"rope_scaling: .*\$\.factor"),
        ({"rope_parameters": {"full_attention": 5}}, "rope_parameters: Expected `object`"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"layer_types": ["full_attention", "odd"]}, "odd"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": -5}, "window"),
        (SMOLLM3 | {"no_rope_layers": [1]}, "no_rope_layers has 1"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval 0"),
    ],
)
def test_an_invalid_config_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        load_model(folder(tmp_path, CONFIG | change, tensors()), "auto")
    assert "config.json" in str(raised.value)


def test_a_bidirectional_decoder_generates_no_text(tmp_path: Path) -> None:
    files = folder(tmp_path, CONFIG | {"is_causal": False}, tensors())
    with pytest.raises(ModelError, match=r"is_causal.*can make embeddings but not generate text"):
        load_model(files, "auto")
    spec = embedding_spec_of_folder(tmp_path)
    assert isinstance(spec, DecoderSpec) and spec.bidirectional


def test_neutral_keys_are_ignored(tmp_path: Path) -> None:
    neutral = {"final_logit_softcapping": None, "logit_scale": 1.0, "is_causal": True}
    assert load_model(folder(tmp_path, CONFIG | neutral, tensors()), "auto").spec == SPEC


@pytest.mark.parametrize("architectures", [{}, {"architectures": None}, {"architectures": []}])
def test_a_config_without_architectures_is_read_by_its_model_type(
    tmp_path: Path, architectures: dict[str, Any]
) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "architectures"}
    files = folder(tmp_path, config | architectures | {"model_type": "llama"}, tensors())
    assert load_model(files, "auto").spec == SPEC


@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_every_model_type_has_a_known_architecture(model_type: str) -> None:
    assert MODEL_TYPES[model_type] in HF_ARCHITECTURES | ENCODER_ARCHITECTURES


def test_an_encoder_is_recognized_by_its_model_type_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    assert is_encoder_folder(tmp_path)


def test_an_unknown_gguf_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    key, value = b"general.architecture", b"mamba"
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    data += struct.pack("<IQ", 8, len(value)) + value + bytes(64)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"mamba is not supported, known are (\S+, )*chatglm, "):
        load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")


def test_deinterleaving_keeps_components_that_are_not_rotated() -> None:
    rows = deinterleaved_rows(heads=2, head_dim=6, rotated=4)
    assert rows.tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert np.array_equal(np.sort(rows), np.arange(12))


def test_the_text_parts_of_a_folder_come_from_its_small_files(tmp_path: Path) -> None:
    files = folder(tmp_path, CONFIG, tensors())
    (tmp_path / "model.safetensors").unlink()  # no weight is read
    (tmp_path / "tokenizer.json").write_text("{}")
    tokenizer_config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "chat_template": [
            {"name": "tool_use", "template": "u"},
            {"name": "rag", "template": "no"},
            {"name": "default", "template": "t"},
        ],
        "added_tokens_decoder": {"7": {"content": "<|im_end|>"}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    generation = {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": [2, 3]}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    parts = load_text_parts(files)
    assert isinstance(parts.tokenizer, TokenizerFiles)
    assert parts.tokenizer.tokenizer == tmp_path / "tokenizer.json"
    assert parts.tokenizer.vocab_size == CONFIG["vocab_size"]
    assert [(t.content, t.id) for t in parts.tokenizer.declared] == [
        ("<|im_end|>", 7),
        ("<s>", None),
    ]
    assert (parts.bos_token, parts.eos_token, parts.chat_template) == ("<s>", "<|im_end|>", "t")
    assert parts.stop_ids == (2, 3, 7)
    assert (parts.generation_defaults.temperature, parts.generation_defaults.top_k) == (0.7, 20)
    assert parts.tool_template == "u"
    (tmp_path / "chat_template.jinja").write_text("own file")
    parts = load_text_parts(files)
    assert (parts.chat_template, parts.tool_template) == ("own file", None)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("own for tools")
    assert load_text_parts(files).tool_template == "own for tools"


@pytest.mark.parametrize("more", [{}, {"do_sample": False}, {"do_sample": None}])
def test_sampling_numbers_apply_only_with_do_sample(tmp_path: Path, more: dict[str, Any]) -> None:
    files = folder(tmp_path, CONFIG, tensors())
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6} | more))
    parts = load_text_parts(files)
    assert parts.generation_defaults.temperature is None
    assert parts.stop_ids == (2,)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", "[", "tokenizer_config.json"),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token"),
        ("special_tokens_map.json", '{"bos_token": 5}', "special_tokens_map.json.*bos_token"),
        ("added_tokens.json", '{"<a>": "b"}', "added_tokens.json"),
        ("generation_config.json", '{"eos_token_id": 16}', "not in the vocabulary"),
        ("generation_config.json", '{"temperature": "hot"}', "temperature"),
        ("chat_template.jinja", "x" * (2 << 20), "larger than"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
    ],
)
def test_bad_text_files_are_named(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    files = folder(tmp_path, CONFIG, tensors())
    (tmp_path / "tokenizer.json").write_text("{}")
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        load_text_parts(files)
