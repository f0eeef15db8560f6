"""Qwen2.5-VL: its vision tower and media. The language model is a Qwen2.

Most layers of the tower attend inside windows; a few attend to the whole frame.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.mmproj import size
from penstock.models.configuration.qwen_mmproj import read_qwen_mmproj
from penstock.models.configuration.qwen_vl import VisionKeys, read_qwen_media, vision_keys
from penstock.models.families.qwen2_vl import DEFAULTS, EPS, MERGER, PUBLISHED
from penstock.models.families.qwen2_vl import NAMES as QWEN2_NAMES
from penstock.models.media.qwen2_vl_processor import Qwen2VlProcessor
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.qwen_vision import QwenTowerSpec
from penstock.models.towers.tower import MediaSpec
from penstock.models.towers.vision_spec import VisionSpec
from penstock.quant.gguf.gguf_file import GgufFile

WINDOWS, FRAME = 0, 1
"""The divisions of patches into attention groups."""
TOKENS_PER_SECOND: Final = 2
"""The published models' value, which `mmproj` files lack."""


class Keys(VisionKeys):
    """The keys of `vision_config`. `window_size`: pixels of a side of a window."""

    hidden_size: int = 3584
    intermediate_size: int = 3420
    hidden_act: str = "silu"
    tokens_per_second: int = 4
    window_size: int = 112
    out_hidden_size: int = 3584
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)


NAMES: Final = replace(QWEN2_NAMES, up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")


def read_folder(folder: Path) -> MediaSpec:
    """See MediaFamily."""
    keys, where = vision_keys(folder, Keys)
    media = read_qwen_media(folder, keys, DEFAULTS)
    window = keys.window_size // keys.spatial_merge_size // keys.patch_size
    if window < 1:
        raise ModelError(f"{where}: window_size {keys.window_size} is smaller than a token")
    if keys.hidden_act != "silu":
        raise ModelError(f"{where}: hidden_act {keys.hidden_act!r}, supported is silu")
    grid = replace(media.grid, window=window)
    full = keys.fullatt_block_indexes
    vision = VisionSpec(
        hidden_size=keys.hidden_size,
        num_heads=keys.num_heads,
        intermediate_size=keys.intermediate_size,
        layers=keys.depth,
        patch_shape=grid.patch_shape,
        norm_eps=EPS,
        norm="rms",
        patch_bias=False,
        rotary_dim=keys.hidden_size // keys.num_heads,
        activation="silu_mul",
        kinds=tuple(FRAME if layer in full else WINDOWS for layer in range(keys.depth)),
    )
    vision.check(where)
    tower = QwenTowerSpec(vision, NAMES, grid, MERGER, keys.out_hidden_size, media.most_patches)
    processor = Qwen2VlProcessor(media.pixels, media.sampling, keys.tokens_per_second)
    return MediaSpec(processor, (tower,))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """See MediaFamily."""
    read = read_qwen_mmproj(file, PUBLISHED)
    every = size(file, "n_wa_pattern")
    pixels = size(file, "window_size", Keys().window_size)
    layers = range(read.sizes.layers)
    vision = replace(
        read.vision,
        norm="rms",
        kinds=tuple(WINDOWS if (layer + 1) % every else FRAME for layer in layers),
    )
    vision.check(str(file.path))
    window = max(pixels // read.media.grid.merge // read.media.grid.patch, 1)
    tower = replace(read.tower(), vision=vision, grid=replace(read.media.grid, window=window))
    processor = Qwen2VlProcessor(read.media.pixels, read.media.sampling, TOKENS_PER_SECOND)
    return MediaSpec(processor, (MmprojTower(tower, read.width),))


FAMILY = Family(
    media=MediaFamily(
        "Qwen2_5_VLForConditionalGeneration", read_folder, ("qwen2.5vl_merger",), read_mmproj
    ),
)
