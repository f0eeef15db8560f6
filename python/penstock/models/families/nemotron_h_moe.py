"""Nemotron 3 Nano: the name of Nemotron-H with mixtures of experts in GGUF files."""

from __future__ import annotations

from penstock.models.configuration.family import Family, GgufDecoder
from penstock.models.families import nemotron_h

FAMILY = Family(
    gguf=GgufDecoder("nemotron_h_moe", nemotron_h.gguf_spec, nemotron_h.GGUF_HYBRID_NAMES)
)
