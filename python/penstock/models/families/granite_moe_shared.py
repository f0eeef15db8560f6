"""Granite MoE with shared experts: Granite MoE with a feed-forward beside the experts."""

from __future__ import annotations

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.families import granite_moe

FAMILY = Family(
    hf=HfDecoder(
        "granitemoeshared",
        "GraniteMoeSharedForCausalLM",
        granite_moe.Config,
        granite_moe.spec,
        granite_moe.NAMES,
    ),
    gguf_of="granitemoe",
)
