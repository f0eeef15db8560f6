"""Extracts the language model of a multimodal checkpoint: its config and the names of its tensors.
The weights of the vision encoder and projector are not read.

For text input, the multimodal model computes the same as its language model alone: the components
of multi-dimensional positions (`mrope`) are equal, and no token attends to later tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.models.decoder.tensor_names import TensorNames, rooted_names
from penstock.quant.checkpoint import TensorInfo

MULTIMODAL_ARCHITECTURES: Final[Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma3nForConditionalGeneration": "gemma3n_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Gemma4UnifiedForConditionalGeneration": "gemma4_unified_text",
    "Idefics3ForConditionalGeneration": "llama",
    "InternVLForConditionalGeneration": "qwen2",
    "Lfm2VlForConditionalGeneration": "lfm2",
    "Llama4ForConditionalGeneration": "llama4_text",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "LlavaOnevisionForConditionalGeneration": "qwen2",
    "Mistral3ForConditionalGeneration": "mistral",
    "Phi4MMForCausalLM": "phi3",
    "Phi4MultimodalForCausalLM": "phi3",
    "Qwen2AudioForConditionalGeneration": "qwen2",
    "Qwen2VLForConditionalGeneration": "qwen2",
    "Qwen2_5_VLForConditionalGeneration": "qwen2",
    "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_moe",
    "Qwen3VLForConditionalGeneration": "qwen3",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_moe",
    "SmolVLMForConditionalGeneration": "llama",
    "UltravoxModel": "llama",
    "VoxtralForConditionalGeneration": "llama",
}
"""Architecture of a multimodal model -> the `model_type` of its language model, if the config has
none."""

_FAMILY_TYPES: Final = {
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
_VICUNA: Final = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11_008,
    "vocab_size": 32_000,
}
_QWEN: Final = _VICUNA | {"intermediate_size": 22_016, "vocab_size": 151_936}
_QWEN2_VL: Final = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 29_568,
    "vocab_size": 152_064,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
# Qwen3-VL interleaves the axes of its positions even if its config does not say so.
_QWEN3_VL: Final = _QWEN | {
    "max_position_embeddings": 128_000,
    "rope_theta": 5e5,
    "mrope_interleaved": True,
}
_PHI4_MULTIMODAL: Final = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 200_064,
    "max_position_embeddings": 131_072,
    "eos_token_id": [199_999, 200_020],
}
_LFM2: Final = {
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 65_536,
}
_QWEN3_5: Final = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "intermediate_size": 12_288,
    "vocab_size": 248_320,
}
_MISTRAL4: Final = {
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "intermediate_size": 12_288,
    "vocab_size": 131_072,
}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": _VICUNA,
    "mistral": _VICUNA | {"intermediate_size": 14_336},
    "mistral4": _MISTRAL4,
    "qwen2": _QWEN,
    "qwen3": _QWEN3_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": _QWEN3_VL,
    "qwen3_vl_moe_text": _QWEN3_VL
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 4,
        "num_local_experts": 60,
        "norm_topk_prob": True,
    },
    "lfm2": _LFM2,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5 | {"hidden_size": 2048, "num_hidden_layers": 40},
    "phi4_multimodal": _PHI4_MULTIMODAL,
    "phi4mm": _PHI4_MULTIMODAL,
    "gemma3_text": {
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "intermediate_size": 9216,
        "vocab_size": 262_208,
    },
}
"""`model_type` of a `text_config` -> the defaults of its config class in transformers, which
override the family's defaults: multimodal models are published with only the keys that differ."""
_MEDIA_TOKENS: Final[Mapping[str, Mapping[str, int]]] = {
    "Gemma4ForConditionalGeneration": {
        "image_token_id": 258_880,
        "audio_token_id": 258_881,
        "video_token_id": 258_884,
    },
}
"""Architecture of a multimodal model whose language model treats the tokens of media apart -> the
keys of these tokens and their defaults."""
_ROOTS: Final = (
    *("model.language_model.", "language_model.model.", "model.text_model.", "thinker.model."),
    "model.",
)
_HEADS: Final = {
    "language_model.model.": "language_model.lm_head",
    "thinker.model.": "thinker.lm_head",
}
"""Root of the language model's tensors -> the name of the head, if it is not "lm_head"."""
_OTHER_PARTS: Final = re.compile(
    r"(thinker\.)?(model\.)?(visual|vision_tower|vision_model|audio_tower|multi_modal_projector"
    r"|connector|image_newline|talker|code2wav|embed_tokens_extend|embed_vision|embed_audio)"
    r"(\..*)?"
)


def text_backbone_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the language model, or a copy of `config` if the model is not
    multimodal. The keys come from `text_config`; older configs have them at the top level."""
    if multimodal_architecture(config) is None:
        return dict(config)
    architecture = config["architectures"][0]
    thinker = config.get("thinker_config")  # of a model that also speaks
    if isinstance(thinker, dict):
        config = thinker
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        inner = config
    kind = inner.get("model_type") or MULTIMODAL_ARCHITECTURES[architecture]
    known = kind if isinstance(kind, str) else ""
    return {
        **_DEFAULTS.get(known, {}),
        **inner,
        "architectures": None,
        "model_type": _FAMILY_TYPES.get(known, kind),
        # This key is at the top level. A separate head tensor in the checkpoint overrides it later.
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
        "eos_token_id": config.get("eos_token_id", inner.get("eos_token_id")),
        **_media_tokens(architecture, config),
    }


def _media_tokens(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key `media_token_ids` for a language model that has it."""
    keys = _MEDIA_TOKENS.get(architecture)
    if keys is None:
        return {}
    return {"media_token_ids": [config.get(key, token) for key, token in keys.items()]}


def multimodal_architecture(config: Mapping[str, Any]) -> str | None:
    """Return the architecture of a multimodal model, or None if the model is not multimodal."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    return name if isinstance(name, str) and name in MULTIMODAL_ARCHITECTURES else None


def text_backbone_names(names: TensorNames, tensors: Collection[str]) -> TensorNames:
    """Return `names` with the prefixes that a multimodal checkpoint with these `tensors` uses.
    Tensors outside the language model are ignored."""
    found = (root for root in _ROOTS if f"{root}embed_tokens.weight" in tensors)
    root = next(found, _ROOTS[0])
    return replace(
        rooted_names(names, root),
        head=_HEADS.get(root, "lm_head"),
        ignored=_OTHER_PARTS if names.ignored is None else _either(_OTHER_PARTS, names.ignored),
    )


def non_text_bytes(tensors: Mapping[str, TensorInfo]) -> int:
    """Return the total bytes of a multimodal checkpoint's tensors outside the language model."""
    return sum(info.size_bytes for name, info in tensors.items() if _OTHER_PARTS.fullmatch(name))


def _either(*patterns: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns))
