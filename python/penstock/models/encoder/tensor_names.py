"""The names of an encoder's tensors in a checkpoint; those of Hugging Face are in `families`."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names without `.weight` or `.bias`.

    Names of a layer follow `layer`, in which {} is the layer's index. Several names of one matrix
    are its parts, stacked by rows: q, k and v; gate and up. `attention_norm` normalizes the result
    of attention and `mlp_norm` that of the feed-forward. Without `mlp_norm` the latter is
    `next_norm` of the following layer, and `final_norm` after the last one. `prefixes`: what may
    precede every name. `ignored` matches tensors that are computed, or serve other tasks."""

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
    position_embeddings: str = ""
    token_type_embeddings: str = ""
    relative: str = ""
    prefixes: tuple[str, ...] = ("",)
    ignored: re.Pattern[str] | None = None

    def norm_after(self, index: int, layers: int) -> str:
        """Return the norm of the result of layer `index` of `layers`."""
        if self.mlp_norm:
            return self.layer.format(index) + self.mlp_norm
        if index == layers - 1:
            return self.final_norm
        return self.layer.format(index + 1) + self.next_norm

    def prefix(self, tensors: Container[str]) -> str:
        """Return the one of `prefixes` that a checkpoint with these tensors uses."""
        found = (p for p in self.prefixes if f"{p}{self.word_embeddings}.weight" in tensors)
        return next(found, self.prefixes[0])


_GGUF = EncoderNames(
    word_embeddings="token_embd",
    position_embeddings="position_embd",
    token_type_embeddings="token_types",
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
    """Return the names of a GGUF file with these tensors: q, k and v are fused or separate, the
    feed-forward may be gated."""
    names = _GGUF
    if "blk.0.attn_qkv.weight" in tensors:
        names = replace(names, qkv=("attn_qkv",))
    if "blk.0.ffn_gate.weight" in tensors:
        names = replace(names, up=("ffn_gate", "ffn_up"))
    return names
