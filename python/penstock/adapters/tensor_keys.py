"""Parses the names of an adapter file's tensors into layer, projection and factor.

PEFT writes `base_model.model.` before the names of the trained model's modules, and the trained
model may or may not have had a language-model head; both prefixes are therefore optional. A tensor
that is not a factor of a linear layer is refused with an error that names the unsupported feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.adapters.errors import AdapterRefused, invalid_adapter

MAX_SHOWN_CHARS: Final = 120
# block -> last component of a module's name -> its projections, in the order of its rows
BLOCKS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "self_attn": {
        "q_proj": ("q",),
        "k_proj": ("k",),
        "v_proj": ("v",),
        "o_proj": ("o",),
        "dense": ("o",),  # Phi
        "qkv_proj": ("q", "k", "v"),
    },
    "mlp": {
        "gate_proj": ("gate",),
        "up_proj": ("up",),
        "down_proj": ("down",),
        "gate_up_proj": ("gate", "up"),
        "fc1": ("up",),  # Phi
        "fc2": ("down",),
        "c_fc": ("up",),  # Starcoder2
        "c_proj": ("down",),
    },
}
_FACTOR: Final = re.compile(
    r"(?:base_model\.model\.)?"
    r"(?P<module>(?:(?:model|language_model|text_model)\.){0,4}"
    r"layers\.(?P<layer>\d{1,5})\.(?P<block>self_attn|mlp)\.(?P<leaf>\w{1,32}))"
    r"\.lora_(?P<side>[AB])(?:\.\w{1,64})?\.weight",
    re.ASCII,
)
# part of a tensor's name -> the feature that is not supported
FEATURES: Final = (
    ("lora_magnitude_vector", "DoRA"),
    ("modules_to_save", "whole modules (modules_to_save)"),
    ("lora_embedding", "an adapter for the embedding"),
    ("embed_tokens.lora_", "an adapter for the embedding"),
    ("lm_head.lora_", "an adapter for the head"),
    ("embed_tokens", "extra vocabulary"),
    ("lm_head", "extra vocabulary"),
    (".bias", "a bias"),
    (".experts", "an adapter for experts"),
    ("block_sparse_moe.", "an adapter for experts"),
    (".mlp.gate.lora_", "an adapter for the router"),
)


@dataclass(frozen=True, slots=True)
class FactorKey:
    """The parsed name of one factor, A or B (`side`). `module`: the module's name as PEFT matches
    it. `projections`: the projections to which the rows of B belong, in order."""

    module: str
    layer: int
    projections: tuple[str, ...]
    side: Literal["A", "B"]


def factor_key(name: str) -> FactorKey:
    """Parse the name of a tensor. Raises AdapterRefused if the tensor is not a factor of a linear
    layer."""
    match = _FACTOR.fullmatch(name)
    projections = BLOCKS[match["block"]].get(match["leaf"]) if match else None
    if match is None or projections is None:
        raise _unexpected(name)
    side: Literal["A", "B"] = "A" if match["side"] == "A" else "B"
    return FactorKey(match["module"], int(match["layer"]), projections, side)


def shown(name: str) -> str:
    """Make a name from a file printable, and short enough for an error message."""
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= MAX_SHOWN_CHARS else printable[:MAX_SHOWN_CHARS] + "..."


def _unexpected(name: str) -> AdapterRefused:
    for part, feature in FEATURES:
        if part in name:
            return invalid_adapter(f"tensor {shown(name)}: {feature} is not supported")
    return invalid_adapter(f"tensor {shown(name)} is not a LoRA factor of a layer of this model")
