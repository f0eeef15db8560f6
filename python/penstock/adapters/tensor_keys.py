"""Parses the names of an adapter file's tensors into layer, module and factor.

PEFT writes `base_model.model.` before the names of the trained model's modules, and the trained
model may or may not have had a language-model head; both prefixes are therefore optional. A tensor
that is not a factor of a linear layer is refused with an error that names the unsupported feature.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from penstock.adapters.errors import AdapterRefused, invalid_adapter

MAX_SHOWN_CHARS: Final = 120
_FACTOR: Final = re.compile(
    r"(?:base_model\.model\.)?"
    r"(?P<module>(?:(?:model|language_model|text_model|backbone)\.){0,4}"
    r"layers\.(?P<layer>\d{1,5})\.(?P<name>\w{1,32}(?:\.\w{1,32}){1,2}))"
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
    it. `name`: its name within the layer, such as "self_attn.q_proj"."""

    module: str
    layer: int
    name: str
    side: Literal["A", "B"]


def factor_key(name: str) -> FactorKey:
    """Parse the name of a tensor. Raises AdapterRefused if it is not the name of a factor of a
    linear layer."""
    match = _FACTOR.fullmatch(name)
    if match is None:
        raise unexpected(name)
    side: Literal["A", "B"] = "A" if match["side"] == "A" else "B"
    return FactorKey(match["module"], int(match["layer"]), match["name"], side)


def shown(name: str) -> str:
    """Make a name from a file printable, and short enough for an error message."""
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= MAX_SHOWN_CHARS else printable[:MAX_SHOWN_CHARS] + "..."


def unexpected(name: str) -> AdapterRefused:
    """Create the error for a tensor that is not a factor of a linear layer of the model."""
    for part, feature in FEATURES:
        if part in name:
            return invalid_adapter(f"tensor {shown(name)}: {feature} is not supported")
    return invalid_adapter(f"tensor {shown(name)} is not a LoRA factor of a layer of this model")
