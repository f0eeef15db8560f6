"""Makes Whisper folders: a small one with random weights, and those of real weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LANGUAGES = ("en", "de", "fr")
NUM_TIMESTAMPS = 1501
END = 256


def special_tokens(languages: tuple[str, ...]) -> list[str]:
    """Return the special tokens before the timestamps, in the order of their ids."""
    names = ["endoftext", "startoftranscript", *languages, "translate", "transcribe"]
    names += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    return [f"<|{name}|>" for name in names]


def random_whisper(
    folder: Path, *, multilingual: bool = True, seed: int = 0, **config: Any
) -> Path:
    """Write a small Whisper with random weights and a byte tokenizer. `config`: overrides keys of
    its config.json."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    languages = LANGUAGES if multilingual else ("en",)
    specials = special_tokens(languages)
    vocab_size = END + len(specials) + NUM_TIMESTAMPS
    ids = {name: END + index for index, name in enumerate(specials)}
    keys = {
        "vocab_size": vocab_size,
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 128,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "pad_token_id": END,
        "bos_token_id": END,
        "eos_token_id": END,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "suppress_tokens": [1, 2, ids["<|translate|>"], ids["<|startoftranscript|>"]],
        "begin_suppress_tokens": [32, END],
    }
    torch.manual_seed(seed)
    made = WhisperConfig(**{**keys, **config})
    model = WhisperForConditionalGeneration(made).eval()
    for name, parameter in model.named_parameters():  # biases and norms are constants at first
        spread = 0.5 if "encoder_attn" in name else 0.1
        parameter.data += spread * torch.randn_like(parameter)
    model.save_pretrained(folder)
    write_tokenizer(folder, specials)
    generation = {
        "is_multilingual": multilingual,
        "suppress_tokens": made.suppress_tokens,
        "begin_suppress_tokens": made.begin_suppress_tokens,
        "eos_token_id": END,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def write_tokenizer(folder: Path, specials: list[str]) -> None:
    """Write a tokenizer.json with a token per byte, the special tokens and the timestamps."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_tokens = {text: index for index, text in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(byte_tokens, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    stamps = [f"<|{index * 0.02:.2f}|>" for index in range(NUM_TIMESTAMPS)]
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (*specials, *stamps)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
