"""Small embedding models with random weights, in folders like those of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 80,
}
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 64,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", "##a", "##b", "cat"]


def small_body(name: str, head: str = "Model", **options: Any) -> Any:
    """Return a float32 transformers model with random weights large enough to expose errors.
    `head`: the suffix of its class."""
    kind = {"Gemma3Text": "Gemma3TextConfig"}.get(name, f"{name}Config")
    sizes = (
        DECODER
        if name.startswith(("Qwen", "Gemma", "Llama", "Granite", "Phi3", "Glm"))
        else ENCODER
    )
    config = getattr(transformers, kind)(**(sizes | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}{head}")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


def save_sentence_folder(
    folder: Path,
    model: Any,
    pooling: str = "mean_tokens",
    *,
    normalize: bool = True,
    dense: torch.nn.Linear | None = None,
    max_tokens: int | None = None,
    prompts: dict[str, Any] | None = None,
) -> Path:
    """Save the model and all small files of its folder."""
    model.save_pretrained(folder)
    return add_sentence_files(
        folder,
        pooling,
        normalize=normalize,
        dense=dense,
        max_tokens=max_tokens,
        prompts=prompts,
    )


def add_sentence_files(
    folder: Path,
    pooling: str = "mean_tokens",
    *,
    normalize: bool = True,
    dense: torch.nn.Linear | None = None,
    max_tokens: int | None = None,
    prompts: dict[str, Any] | None = None,
) -> Path:
    """Turn the folder of a body into that of an embedding model."""
    prefix = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(folder / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})
    if dense is not None:
        modules.append(("2_Dense", "Dense"))
        settings = {
            "in_features": dense.in_features,
            "out_features": dense.out_features,
            "bias": dense.bias is not None,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        _write(folder / "2_Dense" / "config.json", settings)
        state = {f"linear.{name}": value for name, value in dense.state_dict().items()}
        save_file(state, folder / "2_Dense" / "model.safetensors")
    if normalize:
        modules.append(("3_Normalize", "Normalize"))
    _write(
        folder / "modules.json",
        [{"path": path, "type": prefix + kind} for path, kind in modules],
    )
    if max_tokens is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens})
    if prompts is not None:
        _write(folder / "config_sentence_transformers.json", prompts)
    word_pieces().save(str(folder / "tokenizer.json"))
    return folder


def word_pieces() -> tokenizers.Tokenizer:
    """Return a WordPiece tokenizer, with truncation and padding as in published folders."""
    ids = {word: index for index, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.enable_truncation(max_length=6)
    tokenizer.enable_padding(length=6)
    return tokenizer


@torch.no_grad()
def expected_embedding(
    model: Any, tokens: list[int], pooling: str = "mean_tokens", *, normalize: bool = True,
    dense: torch.nn.Linear | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the embedding that sentence-transformers computes from transformers' states."""
    states = model(torch.tensor([tokens])).last_hidden_state[0]
    x = {
        "mean_tokens": states.mean(0),
        "mean_sqrt_len_tokens": states.sum(0) / len(states) ** 0.5,
        "cls_token": states[0],
        "lasttoken": states[-1],
    }[pooling]
    x = x if dense is None else dense(x)
    return torch.nn.functional.normalize(x, dim=0) if normalize else x


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
