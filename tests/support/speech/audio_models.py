"""Small random language models that hear, as `transformers` builds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

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


def save(folder: Path, model: Any) -> Path:
    """Save the model and its feature extractor."""
    model.save_pretrained(folder)
    _extractor().save_pretrained(folder)
    return folder
