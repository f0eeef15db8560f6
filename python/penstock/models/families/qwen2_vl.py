"""Qwen2-VL: the media side."""

from __future__ import annotations

from penstock.models.configuration.hf_processor import CLIP_MEAN, CLIP_STD
from penstock.models.configuration.qwen_vl import PixelDefaults

DEFAULTS = PixelDefaults(
    image=(56 * 56, 28 * 28 * 1280),
    video=(128 * 28 * 28, 28 * 28 * 768),
    mean=CLIP_MEAN,
    std=CLIP_STD,
    budget="frame",
    spread="starts",
)
