"""The names of an encoder's tensors in a checkpoint. The names in Hugging Face folders are in
`families`."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """The names of an encoder's tensors, without `.weight` or `.bias`.

    - `layer`: the prefix of all names of one layer; {} is the layer's index.
    - `qkv`, `up`: the tensors that are stacked by rows: q, k and v, or gate and up.
    - `attention_norm`: the norm of the attention's result.
    - `mlp_norm`: the norm of the feed-forward's result. If it is empty, this norm is `next_norm` of
      the following layer, and `final_norm` after the last layer.
    - `relative`: the biases by relative position.
    - `prefixes`: the prefixes that may precede every name.
    - `ignored`: matches names of tensors that are computed or that serve other tasks.
    """

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
        """Return the name of the norm that is applied to the result of layer `index` of
        `layers`."""
        if self.mlp_norm:
            return self.layer.format(index) + self.mlp_norm
        if index == layers - 1:
            return self.final_norm
        return self.layer.format(index + 1) + self.next_norm

    def prefix(self, tensors: Container[str]) -> str:
        """Return the entry of `prefixes` that a checkpoint with these tensors uses."""
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
    """Return the tensor names of a GGUF file with these `tensors`, in which q, k and v may be fused
    and the feed-forward may be gated."""
    names = _GGUF
    if "blk.0.attn_qkv.weight" in tensors:
        names = replace(names, qkv=("attn_qkv",))
    if "blk.0.ffn_gate.weight" in tensors:
        names = replace(names, up=("ffn_gate", "ffn_up"))
    return names
