"""Small random language models that hear, as `transformers` builds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    _get_feat_extract_output_lengths,
)

from tests.support.vision_models import TEXT, randomized

AUDIO_TOKEN = 61
RATE = 16_000
LENGTHS = (1_500, 16_001, 77_777, 480_000, 500_123)
"""Samples of the recordings of tests."""


@dataclass(frozen=True)
class Heard:
    """The inputs that `transformers` computes from one recording. `rows`: rows of its
    embeddings."""

    inputs: dict[str, torch.Tensor]
    rows: int


@dataclass(frozen=True)
class AudioCase:
    """A family. `hears(samples)`: the inputs of a recording by transformers' feature extractor."""

    name: str
    audio: dict[str, Any]
    hears: Callable[[np.ndarray], Heard]


def sound(samples: int) -> np.ndarray:
    """Return a recording of noise that becomes louder."""
    noise = np.random.default_rng(samples).normal(size=samples)
    return (noise * np.linspace(0.01, 0.3, samples)).astype(np.float32)


def _extractor() -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=128)


def _one_window(samples: np.ndarray) -> Heard:
    """Return the inputs of Qwen2-Audio, as its processor makes them."""
    made = _extractor()(
        samples,
        sampling_rate=RATE,
        return_attention_mask=True,
        padding="max_length",
        return_tensors="pt",
    )
    frames = int(made["attention_mask"].sum())
    inputs = {
        "input_features": made["input_features"],
        "feature_attention_mask": made["attention_mask"],
    }
    return Heard(inputs, (((frames - 1) // 2 + 1) - 2) // 2 + 1)


def _whole_windows(samples: np.ndarray) -> Heard:
    """Return the inputs of Voxtral, as its processor makes them."""
    made = _extractor()(
        samples,
        sampling_rate=RATE,
        padding=True,
        truncation=False,
        pad_to_multiple_of=480_000,
        return_tensors="pt",
    )
    features = made["input_features"].reshape(128, -1, 3000).transpose(0, 1)
    return Heard({"input_features": features}, len(features) * 375)


def _unpadded(samples: np.ndarray) -> Heard:
    """Return the inputs of Qwen3-Omni, as its processor makes them."""
    made = _extractor()(
        samples,
        sampling_rate=RATE,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    frames = made["attention_mask"].sum(-1)
    inputs = {
        "input_features": made["input_features"],
        "feature_attention_mask": made["attention_mask"],
    }
    return Heard(inputs, int(_get_feat_extract_output_lengths(frames)))


CASES = {
    "qwen2-audio": AudioCase(
        "Qwen2Audio",
        {
            "model_type": "qwen2_audio_encoder",
            "d_model": 32,
            "encoder_layers": 3,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
        },
        _one_window,
    ),
    "voxtral": AudioCase(
        "Voxtral",
        {
            "model_type": "voxtral_encoder",
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 128,
        },
        _whole_windows,
    ),
}
OMNI = AudioCase(
    "Qwen3OmniMoeThinker",
    {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "downsample_hidden_size": 16,
        "output_dim": 64,
        "n_window_infer": 200,
    },
    _unpadded,
)
"""A model whose embeddings cannot be observed as those of CASES can."""
_EXPERTS = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
_NO_VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32}


def small_model(case: AudioCase) -> Any:
    """Return a float32 model with weights large enough to expose errors."""
    kind = "qwen2" if case.name == "Qwen2Audio" else "llama"
    text = TEXT | {"model_type": kind, "max_position_embeddings": 8192}
    if kind == "qwen2":
        text.pop("head_dim")
    config = getattr(transformers, f"{case.name}Config")(
        text_config=text, audio_config=case.audio, audio_token_id=AUDIO_TOKEN
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return randomized(getattr(transformers, f"{case.name}ForConditionalGeneration")(config))


def small_thinker() -> Any:
    """Return Qwen3-Omni's thinker in float32."""
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config=TEXT | _EXPERTS | {"model_type": "qwen3_omni_moe_text"},
        audio_config=OMNI.audio,
        vision_config=_NO_VISION | {"out_hidden_size": 64, "deepstack_visual_indexes": [0]},
        audio_token_id=AUDIO_TOKEN,
    )
    config._attn_implementation = "eager"
    config.vision_start_token_id = -1  # transformers' model reads it, and no prompt has it
    torch.manual_seed(0)
    return randomized(transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config))


def save_thinker(folder: Path, model: Any) -> Path:
    """Save the thinker as a part of Qwen3-Omni."""
    save(folder, model)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {f"thinker.{name}": one for name, one in tensors.items()}, folder / "model.safetensors"
    )
    keys = json.loads((folder / "config.json").read_text())
    whole = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "thinker_config": keys}
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def save(folder: Path, model: Any) -> Path:
    """Save the model and its feature extractor."""
    model.save_pretrained(folder)
    _extractor().save_pretrained(folder)
    return folder
