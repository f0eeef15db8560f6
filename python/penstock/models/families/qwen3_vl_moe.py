"""Qwen3-VL with a mixture of experts: the media of Qwen3-VL over a Qwen3-MoE."""

from __future__ import annotations

from penstock.models.configuration.family import Family, GgufDecoder, MediaFamily
from penstock.models.families.qwen3_vl import read_folder

FAMILY = Family(
    gguf=GgufDecoder("qwen3vlmoe"),
    media=MediaFamily("Qwen3VLMoeForConditionalGeneration", read_folder),
)
