"""Transcribes speech with OpenAI's Whisper tiny.en, run by transformers."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

WHISPER_RATE = 16_000
START, NO_TIMESTAMPS, END = 50257, 50362, 50256
MAX_TOKENS = 200
RENAMED = (
    (".blocks.", ".layers."),
    (".attn_ln.", ".self_attn_layer_norm."),
    (".cross_attn_ln.", ".encoder_attn_layer_norm."),
    (".mlp_ln.", ".final_layer_norm."),
    (".mlp.0.", ".fc1."),
    (".mlp.2.", ".fc2."),
    (".cross_attn.", ".encoder_attn."),
    (".attn.", ".self_attn."),
    (".query.", ".q_proj."),
    (".key.", ".k_proj."),
    (".value.", ".v_proj."),
    (".out.", ".out_proj."),
    ("encoder.ln_post.", "encoder.layer_norm."),
    ("decoder.ln.", "decoder.layer_norm."),
    ("token_embedding.", "embed_tokens."),
)


class Transcriber:
    """Whisper tiny.en from a folder with `tiny.en.pt` and `gpt2.tiktoken`."""

    def __init__(self, folder: Path) -> None:
        saved = torch.load(folder / "tiny.en.pt", map_location="cpu", weights_only=True)
        self._model = _model(saved["dims"], saved["model_state_dict"])
        lines = (folder / "gpt2.tiktoken").read_text().split("\n")
        pairs = (line.split(" ") for line in lines if line)
        self._tokens = {int(number): base64.b64decode(text) for text, number in pairs}
        self._features = WhisperFeatureExtractor(feature_size=saved["dims"]["n_mels"])

    def words(self, samples: npt.NDArray[np.float32], rate: int) -> list[str]:
        """Return the words of a recording of at most 30 s, in lower case and without
        punctuation."""
        times = np.arange(0, len(samples), rate / WHISPER_RATE)
        resampled = np.interp(times, np.arange(len(samples)), samples)
        made = self._features(resampled, sampling_rate=WHISPER_RATE, return_tensors="pt")
        tokens = [START, NO_TIMESTAMPS]
        with torch.inference_mode():
            encoded = self._model.model.encoder(made.input_features)
            while len(tokens) < MAX_TOKENS and tokens[-1] != END:
                out = self._model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens]))
                tokens.append(int(out.logits[0, -1].argmax()))
        text = b"".join(self._tokens.get(token, b"") for token in tokens[2:]).decode()
        return re.sub(r"[^a-z0-9 ]", "", text.lower().replace("-", " ")).split()


def _model(dims: dict[str, int], weights: dict[str, Any]) -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        encoder_layers=dims["n_audio_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        decoder_layers=dims["n_text_layer"],
        decoder_attention_heads=dims["n_text_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
    )
    model = WhisperForConditionalGeneration(config)
    named = {f"model.{_renamed(name)}": weight.float() for name, weight in weights.items()}
    named["proj_out.weight"] = named["model.decoder.embed_tokens.weight"]
    model.load_state_dict(named)
    return model.eval()


def _renamed(name: str) -> str:
    if name.endswith("positional_embedding"):
        return name.replace("positional_embedding", "embed_positions.weight")
    for old, new in RENAMED:
        name = name.replace(old, new)
    return name
