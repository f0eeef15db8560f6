"""The language model inside a multimodal checkpoint gives the logits of `transformers` for text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from safetensors.torch import load_file, save_file

from penstock.base.errors import ModelError
from penstock.models.configuration.text_backbone import (
    MULTIMODAL_ARCHITECTURES,
    text_backbone_config,
)
from penstock.models.families.registry import HF_ARCHITECTURES, MODEL_TYPES, spec_of_folder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from penstock.models.tokenizer.hf_tokenizer import text_parts

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50]
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MROPE = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 3, 3],
    }
}
QWEN3_5 = {
    "rope_parameters": MROPE["rope_parameters"]
    | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 14,
}
PATCHES = {key: value for key, value in VISION.items() if key != "image_size"}
GEMMA4 = {"sliding_window": 5, "global_head_dim": 32, "final_logit_softcapping": 3.0}
GEMMA4_TOKENS = {"image_token_id": 63, "audio_token_id": 62, "video_token_id": 61}
CLIP = VISION | {"model_type": "clip_vision_model"}
QWEN_TOKENS = {"image_token_id": 63, "video_token_id": 62, "vision_start_token_id": 61}

# Architecture -> the keys of text_config, of vision_config, and of the whole config.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Gemma3": (
        {"sliding_window": 5, "query_pre_attn_scalar": 32},
        VISION,
        {"mm_tokens_per_image": 4, "image_token_index": 63},
    ),
    "Gemma4": (
        GEMMA4 | {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 64},
        PATCHES | {"num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 40},
        GEMMA4_TOKENS,
    ),
    "Gemma4Unified": (
        GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {"patch_size": 4, "mm_embed_dim": 40, "mm_posemb_size": 30, "output_proj_dims": 40},
        GEMMA4_TOKENS,
    ),
    "Idefics3": ({"model_type": "llama"}, VISION, {"image_token_id": 63}),
    "InternVL": (
        {"model_type": "qwen2"},
        VISION | {"model_type": "internvl_vision"},
        {"image_token_id": 63},
    ),
    "Lfm2Vl": (
        {
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
        VISION | {"model_type": "siglip2_vision_model"},
        {"image_token_id": 63},
    ),
    "Llava": ({"model_type": "llama"}, CLIP, {"image_token_index": 63}),
    "LlavaNext": (
        {"model_type": "mistral", "sliding_window": None},
        CLIP,
        {"image_token_index": 63},
    ),
    "LlavaOnevision": (
        {"model_type": "qwen2"},
        VISION | {"model_type": "siglip_vision_model"},
        {"image_token_index": 63},
    ),
    "Mistral3": (
        {"model_type": "mistral", "sliding_window": 7},
        VISION | {"model_type": "pixtral", "head_dim": 16},
        {"image_token_index": 63, "tie_word_embeddings": False},
    ),
    "Qwen2VL": (
        MROPE,
        {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14},
        QWEN_TOKENS,
    ),
    "Qwen2_5_VL": (MROPE, QWEN_VISION, QWEN_TOKENS | {"tie_word_embeddings": True}),
    "Qwen3_5": (QWEN3_5, QWEN_VISION, QWEN_TOKENS),
    "Qwen3_5Moe": (
        QWEN3_5
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
        QWEN_VISION,
        QWEN_TOKENS,
    ),
    "Qwen3VL": (MROPE, QWEN_VISION | {"deepstack_visual_indexes": [0]}, QWEN_TOKENS),
    "Qwen3VLMoe": (
        MROPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        QWEN_VISION | {"deepstack_visual_indexes": [0]},
        QWEN_TOKENS,
    ),
    "SmolVLM": ({"model_type": "llama"}, VISION, {"image_token_id": 63}),
}

# The models that hear answer prompts with and without recordings in tests/engine.
HEARING = ("Qwen2Audio", "Qwen3OmniMoe", "Voxtral")
# Architectures whose texts are tested in test_gemma_models.py,
# test_phi4_answers.py, test_phi4mm.py and test_ultravox.py.
ELSEWHERE = {
    "Gemma3nForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "Phi4MultimodalForCausalLM",
    "Phi4MMForCausalLM",
    "UltravoxModel",
}


def build(name: str) -> Any:
    """Return a small float32 model with weights large enough to expose errors."""
    text, vision, whole = CASES[name]
    make = getattr(transformers, f"{name}Config")
    config = make(text_config=SMALL | text, vision_config=vision, **whole)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


@torch.no_grad()
def expected_logits(model: Any) -> torch.Tensor:
    return model(input_ids=torch.tensor([PROMPT])).logits[0]


def logits_of(folder: Path) -> torch.Tensor:
    return Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)


def edit_config(folder: Path, edit: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def test_every_multimodal_architecture_has_a_case() -> None:
    names = {f"{name}ForConditionalGeneration" for name in (*CASES, *HEARING)}
    assert names | ELSEWHERE == set(MULTIMODAL_ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_text_alone_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(tmp_path), expected_logits(model), atol=1e-4, rtol=1e-4)


def test_experts_of_published_folders_are_transposed(tmp_path: Path) -> None:
    model = build("Qwen3VLMoe")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})
    torch.testing.assert_close(logits_of(tmp_path), expected_logits(model), atol=1e-4, rtol=1e-4)


def test_tensor_names_of_newer_tools_are_found(tmp_path: Path) -> None:
    model = build("Gemma3")
    model.save_pretrained(tmp_path, save_original_format=False)
    torch.testing.assert_close(logits_of(tmp_path), expected_logits(model), atol=1e-4, rtol=1e-4)


def test_text_keys_may_be_beside_those_of_the_images(tmp_path: Path) -> None:
    """The published configs of Qwen2-VL and Qwen2.5-VL are like that."""
    model = build("Qwen2_5_VL")
    model.save_pretrained(tmp_path)

    def flatten(config: dict[str, Any]) -> None:
        text = config.pop("text_config")
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope["rope_theta"]
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        config.update({key: value for key, value in text.items() if key not in config})

    edit_config(tmp_path, flatten)
    torch.testing.assert_close(logits_of(tmp_path), expected_logits(model), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("Gemma3ForConditionalGeneration", transformers.Gemma3TextConfig),
        ("LlavaForConditionalGeneration", transformers.LlamaConfig),
        ("Mistral3ForConditionalGeneration", transformers.MistralConfig),
        ("InternVLForConditionalGeneration", transformers.Qwen2Config),
        ("Qwen2VLForConditionalGeneration", transformers.Qwen2VLTextConfig),
        ("Qwen2_5_VLForConditionalGeneration", transformers.Qwen2_5_VLTextConfig),
        ("Qwen3_5ForConditionalGeneration", transformers.Qwen3_5TextConfig),
        ("Qwen3VLForConditionalGeneration", transformers.Qwen3VLTextConfig),
        ("Qwen3VLMoeForConditionalGeneration", transformers.Qwen3VLMoeTextConfig),
    ],
)
def test_a_text_config_with_only_a_model_type_gets_the_defaults_of_its_class(
    architecture: str, config: Any, tmp_path: Path
) -> None:
    """Gemma 3 and LLaVA are published with only the keys that differ."""
    written = {"architectures": [architecture], "text_config": {"model_type": config.model_type}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    spec, theirs = spec_of_folder(tmp_path), config()
    rope = theirs.rope_parameters
    heads = theirs.num_attention_heads
    assert (
        spec.hidden_size == theirs.hidden_size
        and spec.intermediate_size == theirs.intermediate_size
    )
    assert len(spec.layers) == theirs.num_hidden_layers and spec.vocab_size == theirs.vocab_size
    assert (spec.num_heads, spec.num_kv_heads) == (heads, theirs.num_key_value_heads)
    assert spec.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // heads)
    assert spec.norm_eps == theirs.rms_norm_eps
    assert spec.max_model_len == theirs.max_position_embeddings
    assert spec.rope.theta == rope.get("full_attention", rope)["rope_theta"]


def test_eos_ids_are_those_of_the_whole_config_or_else_of_text_config() -> None:
    text = {"model_type": "llama", "eos_token_id": 2}
    whole = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    assert text_backbone_config(whole)["eos_token_id"] == 2
    assert text_backbone_config(whole | {"eos_token_id": [1, 106]})["eos_token_id"] == [1, 106]


def test_stop_ids_of_a_folder_come_from_its_text(tmp_path: Path) -> None:
    build("Llava").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert text_parts(tmp_path, "m", "f").stop_ids == (2,)


@pytest.mark.parametrize("kind", ["mamba", 7, None, ["llama"]])
def test_a_language_model_that_is_not_known_is_refused_by_name(kind: Any, tmp_path: Path) -> None:
    text = SMALL | {"model_type": kind}
    written = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(written))
    if kind is None:
        assert spec_of_folder(tmp_path).architecture == "mistral"
        return
    with pytest.raises(ModelError, match="over a mamba" if kind == "mamba" else "model_type"):
        spec_of_folder(tmp_path)


def test_other_parts_take_no_memory_and_the_log_says_so(tmp_path: Path) -> None:
    build("Llava").save_pretrained(tmp_path)
    model = load_model(ModelFiles("m", "folder", tmp_path), "auto")
    language = (tmp_path / "model.safetensors").stat().st_size + model.extra_bytes
    spec = model.spec
    matrices = 2 * spec.vocab_size * spec.hidden_size + 3 * (
        2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96
    )
    assert 0 <= language - 4 * (matrices + 7 * spec.hidden_size) < 20_000  # the file's own header
    assert model.load_note == (
        "; only the language model of LlavaForConditionalGeneration: images are not supported"
    )
    exact = load_model(ModelFiles("m", "folder", tmp_path), "f32")
    assert exact.extra_bytes == 0


def test_a_tensor_of_an_unknown_part_is_refused(tmp_path: Path) -> None:
    build("Llava").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes().replace(b"vision_tower.", b"vision_towel.")
    path.write_bytes(data)
    with pytest.raises(ModelError, match=re.escape("unexpected tensor vision_towel.")):
        load_model(ModelFiles("m", "folder", tmp_path), "auto")


def test_default_keys_are_fields_of_the_family_config() -> None:
    for architecture in MULTIMODAL_ARCHITECTURES:
        given = text_backbone_config({"architectures": [architecture], "text_config": {}})
        family = HF_ARCHITECTURES[MODEL_TYPES[given["model_type"]]]
        known = set(family.config.__struct_fields__)
        assert set(given) - known <= {"architectures", "model_type", "eos_token_id"}
