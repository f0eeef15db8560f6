"""Writes a small transformers encoder as GGUF, in the layout of llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NAMES = {
    "embeddings.word_embeddings.": "token_embd.",
    "embeddings.position_embeddings.": "position_embd.",
    "embeddings.token_type_embeddings.": "token_types.",
    "embeddings.LayerNorm.": "token_embd_norm.",
    "encoder.layer.": "blk.",
    "layers.": "blk.",
    "attention.self.query.": "attn_q.",
    "attention.self.key.": "attn_k.",
    "attention.self.value.": "attn_v.",
    "attention.output.dense.": "attn_output.",
    "attention.output.LayerNorm.": "attn_output_norm.",
    "intermediate.dense.": "ffn_up.",
    "output.dense.": "ffn_down.",
    "output.LayerNorm.": "layer_output_norm.",
    "self_attn.qkv.": "attn_qkv.",
    "self_attn.o_proj.": "attn_output.",
    "post_attention_layernorm.": "attn_output_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "post_mlp_layernorm.": "layer_output_norm.",
}
POOLINGS = {"rank": 4, "mean_tokens": 1, "cls_token": 2, "lasttoken": 3}


def export_encoder(
    model: Any,
    path: Path,
    pooling: str = "mean_tokens",
    kind: str = "F32",
    words: Sequence[str] = (),
    extra_keys: Mapping[str, float] | None = None,
) -> Path:
    """Write `model` to `path`. `kind`: the type of the matrices; those that it does not fit are
    wider. `words`: a WordPiece vocabulary in BERT's notation. `extra_keys`: further numbers of the
    metadata."""
    config = model.config
    name = {"bert": "bert", "nomic_bert": "nomic-bert"}[config.model_type]
    writer = gguf.GGUFWriter(str(path), name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(POOLINGS[pooling]))
    if name == "nomic-bert":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (extra_keys or {}).items():
        writer.add_float32(key, value)
    if words:
        add_word_pieces(writer, words)
    for tensor, values in _tensors(model).items():
        for old, new in NAMES.items():
            tensor = tensor.replace(old, new)
        wide = values.ndim == 1 or tensor.startswith(("position", "token_types"))
        packed = gguf.GGMLQuantizationType["F32" if wide else kind]
        writer.add_tensor(tensor, gguf.quants.quantize(values, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model: Any) -> dict[str, np.ndarray]:
    state = {name: x.float().numpy() for name, x in model.state_dict().items() if x.ndim}
    tensors: dict[str, np.ndarray] = {}
    for name, values in state.items():
        if name.startswith("pooler.") or name.endswith(("_ids", "inv_freq")):
            continue
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            name, values = name.replace("q_proj", "qkv"), np.concatenate(parts)
        tensors[name] = values
    return tensors


def phantom(word: str) -> str:
    """Return a WordPiece token as converters write it: a word's leading space is marked, a
    continuation is not."""
    if word.startswith("[") and word.endswith("]"):
        return word
    return word.removeprefix("##") if word.startswith("##") else "\u2581" + word


def add_word_pieces(writer: gguf.GGUFWriter, words: Sequence[str]) -> None:
    """Add the tokenizer of a BERT whose vocabulary starts with [PAD], [UNK], [CLS] and [SEP]."""
    control = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    kinds = [gguf.TokenType.CONTROL if w in control else gguf.TokenType.NORMAL for w in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([phantom(word) for word in words])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_bos_token_id(words.index("[CLS]"))  # the name in current converters
    writer.add_pad_token_id(words.index("[PAD]"))
