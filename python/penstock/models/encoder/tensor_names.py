"""Where each weight of an encoder lies in a checkpoint, as data; one constant for each format."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names without their `.weight` or `.bias`; those of a layer follow `layer`, in which {} is its
    index. Several names of one matrix are its parts: q, k and v; the gate and what it is for.

    `attention_norm` normalises what attention gave, `mlp_norm` what the feed-forward did; without
    `mlp_norm` that is `next_norm` of the following layer, and `final_norm` after the last one.
    `prefixes`: what may stand before every name. `ignored` matches tensors that are for other tasks
    than embeddings, or computed."""

    word_embeddings: str
    embedding_norm: str
    layer: str
    qkv: tuple[str, ...]
    output: str
    attention_norm: str
    up: tuple[str, ...]
    down: str
    mlp_norm: str = ""
    next_norm: str = ""
    final_norm: str = ""
    positions: str = ""
    types: str = ""
    relative: str = ""
    prefixes: tuple[str, ...] = ("",)
    ignored: re.Pattern[str] | None = None

    def norm_after(self, index: int, layers: int) -> str:
        """What normalises the result of layer `index` of so many."""
        if self.mlp_norm:
            return self.layer.format(index) + self.mlp_norm
        if index == layers - 1:
            return self.final_norm
        return self.layer.format(index + 1) + self.next_norm

    def prefix(self, tensors: Container[str]) -> str:
        """What stands before every name of a checkpoint with these tensors."""
        found = (p for p in self.prefixes if f"{p}{self.word_embeddings}.weight" in tensors)
        return next(found, self.prefixes[0])


BERT = EncoderNames(
    word_embeddings="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
    mlp_norm="output.LayerNorm",
    prefixes=("", "bert.", "roberta."),
    ignored=re.compile(
        r".*(pooler\.dense\.(weight|bias)|embeddings\.position_ids)|(cls|lm_head)\..*"
    ),
)

MPNET = replace(
    BERT,
    types="",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    relative="encoder.relative_attention_bias",
    prefixes=("", "mpnet."),
)

# As its authors wrote it, and transformers still writes it.
NOMIC_BERT = EncoderNames(
    word_embeddings="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    layer="encoder.layers.{}.",
    qkv=("attn.Wqkv",),
    output="attn.out_proj",
    attention_norm="norm1",
    up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    mlp_norm="norm2",
    prefixes=("", "bert.", "nomic_bert."),
    ignored=re.compile(r".*embeddings\.position_ids|.*rotary_emb\.inv_freq|(cls|lm_head)\..*"),
)

MODERNBERT = EncoderNames(
    word_embeddings="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layer="layers.{}.",
    qkv=("attn.Wqkv",),
    output="attn.Wo",
    attention_norm="mlp_norm",
    up=("mlp.Wi",),
    down="mlp.Wo",
    next_norm="attn_norm",
    final_norm="final_norm",
    prefixes=("", "model."),
    ignored=re.compile(r"(head|decoder|classifier)\..*"),
)

HF_ENCODER_NAMES = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "mpnet": MPNET,
    "nomic-bert": NOMIC_BERT,
    "modernbert": MODERNBERT,
}

_GGUF = EncoderNames(
    word_embeddings="token_embd",
    positions="position_embd",
    types="token_types",
    embedding_norm="token_embd_norm",
    layer="blk.{}.",
    qkv=("attn_q", "attn_k", "attn_v"),
    output="attn_output",
    attention_norm="attn_output_norm",
    up=("ffn_up",),
    down="ffn_down",
    mlp_norm="layer_output_norm",
)


def gguf_encoder_names(tensors: Container[str]) -> EncoderNames:
    """Those of a GGUF file with these tensors: q, k and v lie fused or apart."""
    names = _GGUF
    if "blk.0.attn_qkv.weight" in tensors:
        names = replace(names, qkv=("attn_qkv",))
    if "blk.0.ffn_gate.weight" in tensors:
        names = replace(names, up=("ffn_gate", "ffn_up"))
    return names
