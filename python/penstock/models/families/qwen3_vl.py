"""Qwen3-VL: the media side."""

from __future__ import annotations

from penstock.models.configuration.hf_processor import HALVES
from penstock.models.configuration.qwen_vl import PixelDefaults

DEFAULTS = PixelDefaults(
    image=(64 * 32 * 32, 16_384 * 32 * 32),
    video=(128 * 32 * 32, 32 * 32 * 768),
    mean=HALVES,
    std=HALVES,
    budget="video",
    spread="ends",
)
