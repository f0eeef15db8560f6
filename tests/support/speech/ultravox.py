"""A small random Ultravox, and its published computation in plain torch: `transformers` has no
class for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from tests.support.vision_models import TEXT, randomized

AUDIO = {
    "model_type": "whisper",
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "num_mel_bins": 128,
}
FRAMES, STACK, INNER = 3000, 8, 80


class Projector(nn.Module):
    """Joined positions, a norm, SwiGLU with the gate last, and a norm before or after the last
    layer."""

    def __init__(self, width: int, is_middle: bool) -> None:
        super().__init__()
        self.ln_pre = LlamaRMSNorm(AUDIO["d_model"] * STACK, eps=1e-6)
        self.linear_1 = nn.Linear(AUDIO["d_model"] * STACK, INNER, bias=False)
        self.linear_2 = nn.Linear(INNER // 2, width, bias=False)
        if is_middle:
            self.ln_mid = LlamaRMSNorm(INNER // 2, eps=1e-6)
        else:
            self.ln_post = LlamaRMSNorm(width, eps=1e-6)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(states, (0, 0, 0, -len(states) % STACK))
        joined = self.ln_pre(padded.reshape(-1, self.ln_pre.weight.shape[0]))
        values, gates = self.linear_1(joined).chunk(2, -1)
        inner = functional.silu(gates) * values
        if hasattr(self, "ln_mid"):
            inner = self.ln_mid(inner)
        rows = self.linear_2(inner)
        return self.ln_post(rows) if hasattr(self, "ln_post") else rows


class Ultravox(nn.Module):
    """The encoder and the projector, with the names of published weights."""

    def __init__(self, width: int, is_middle: bool) -> None:
        super().__init__()
        config = transformers.WhisperConfig(**AUDIO)
        config._attn_implementation = "eager"
        self.audio_tower = WhisperEncoder(config)
        self.multi_modal_projector = Projector(width, is_middle)

    @torch.inference_mode()
    def forward(self, samples: np.ndarray) -> torch.Tensor:
        """Return the rows of a recording."""
        made = transformers.WhisperFeatureExtractor(feature_size=128)(
            samples,
            sampling_rate=16_000,
            padding="longest",
            pad_to_multiple_of=160,
            truncation=False,
            return_tensors="pt",
        )
        windows = made["input_features"][0].split(FRAMES, dim=1)
        return torch.cat([self.multi_modal_projector(self._encode(one)) for one in windows])

    def _encode(self, features: torch.Tensor) -> torch.Tensor:
        tower = self.audio_tower
        states = functional.gelu(tower.conv1(features[None]))
        states = functional.gelu(tower.conv2(states)).transpose(1, 2)
        states = states + tower.embed_positions.weight[: states.shape[1]]
        for layer in tower.layers:
            found = layer(states, None)
            states = found[0] if isinstance(found, tuple) else found
        return tower.layer_norm(states)[0]


def small_ultravox(folder: Path, *, is_middle: bool) -> Ultravox:
    """Write a folder with a small Llama, and return the reference."""
    torch.manual_seed(0)
    hearing = randomized(Ultravox(TEXT["hidden_size"], is_middle))
    text = TEXT | {"model_type": "llama", "max_position_embeddings": 8192}
    llama = randomized(transformers.LlamaForCausalLM(transformers.LlamaConfig(**text)))
    tensors = {f"language_model.{name}": one for name, one in llama.state_dict().items()}
    tensors |= hearing.state_dict()
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    write_config(folder, projector_ln_mid=is_middle, text_config=text)
    (folder / "preprocessor_config.json").write_text("{}")
    return hearing


def write_config(folder: Path, **keys: Any) -> None:
    """Write config.json. `keys`: override those of the small model."""
    config = {
        "architectures": ["UltravoxModel"],
        "model_type": "ultravox",
        "audio_config": AUDIO,
        "text_config": TEXT,
        "hidden_size": INNER,
        "stack_factor": STACK,
        "projector_act": "swiglu",
    }
    (folder / "config.json").write_text(json.dumps(config | keys))
