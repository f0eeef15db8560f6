"""Qwen2-VL: its vision tower and media. The language model is a Qwen2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.models.configuration.family import Family, GgufDecoder, MediaFamily
from penstock.models.configuration.qwen_mmproj import read_qwen_mmproj
from penstock.models.configuration.qwen_vl import (
    ROOTS,
    PixelDefaults,
    VisionKeys,
    plain_activation,
    read_qwen_media,
    vision_keys,
)
from penstock.models.media.image_config import CLIP_MEAN, CLIP_STD
from penstock.models.media.qwen2_vl_processor import Qwen2VlProcessor
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.qwen_vision import MergerNames, QwenTowerSpec
from penstock.models.towers.tower import MediaSpec
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_weights import VisionNames
from penstock.quant.gguf.gguf_file import GgufFile

EPS: Final = 1e-6
PUBLISHED_PIXELS: Final = (56 * 56, 28 * 28 * 16_384)
DEFAULTS: Final = PixelDefaults(
    image=(56 * 56, 28 * 28 * 1280),
    video=(128 * 28 * 28, 28 * 28 * 768),
    mean=CLIP_MEAN,
    std=CLIP_STD,
    budget="frame",
    spread="starts",
)

PUBLISHED: Final = replace(DEFAULTS, image=PUBLISHED_PIXELS, video=PUBLISHED_PIXELS)
"""The pixels in the files of the published models, which `mmproj` files lack."""


class Keys(VisionKeys):
    """The keys of `vision_config`. `hidden_size` is the width of the language model."""

    embed_dim: int = 1280
    hidden_size: int = 3584
    mlp_ratio: float = 4


NAMES: Final = VisionNames(
    roots=ROOTS,
    patch="patch_embed.proj",
    layer="blocks.{}.",
    attention_norm="norm1",
    qkv=("attn.qkv",),
    output="attn.proj",
    mlp_norm="norm2",
    up=("mlp.fc1",),
    down="mlp.fc2",
)
MERGER: Final = MergerNames("merger.ln_q", "merger.mlp.0", "merger.mlp.2")


def read_folder(folder: Path) -> MediaSpec:
    """See MediaFamily."""
    keys, where = vision_keys(folder, Keys)
    media = read_qwen_media(folder, keys, DEFAULTS)
    vision = VisionSpec(
        hidden_size=keys.embed_dim,
        num_heads=keys.num_heads,
        intermediate_size=int(keys.embed_dim * keys.mlp_ratio),
        layers=keys.depth,
        patch_shape=media.grid.patch_shape,
        norm_eps=EPS,
        patch_bias=False,
        rotary_dim=keys.embed_dim // keys.num_heads,
        activation=plain_activation(keys, where),
    )
    vision.check(where)
    tower = QwenTowerSpec(vision, NAMES, media.grid, MERGER, keys.hidden_size, media.most_patches)
    return MediaSpec(Qwen2VlProcessor(media.pixels, media.sampling), (tower,))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """See MediaFamily."""
    read = read_qwen_mmproj(file, PUBLISHED)
    read.vision.check(str(file.path))
    processor = Qwen2VlProcessor(read.media.pixels, read.media.sampling)
    return MediaSpec(processor, (MmprojTower(read.tower(), read.width),))


FAMILY = Family(
    gguf=GgufDecoder("qwen2vl"),
    media=MediaFamily(
        "Qwen2VLForConditionalGeneration", read_folder, ("qwen2vl_merger",), read_mmproj
    ),
)
