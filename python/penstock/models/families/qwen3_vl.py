"""Qwen3-VL: its vision tower and media. The language model is a Qwen3.

The tower adds learned positions, interpolated to the size of the frame, and passes the results of
some of its layers to the first layers of the language model (DeepStack).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, MediaFamily
from penstock.models.configuration.qwen_mmproj import deep_layers, read_qwen_mmproj
from penstock.models.configuration.qwen_vl import (
    PixelDefaults,
    QwenMedia,
    VisionKeys,
    plain_activation,
    read_qwen_media,
    vision_keys,
)
from penstock.models.families.qwen2_vl import EPS
from penstock.models.families.qwen2_vl import NAMES as QWEN2_NAMES
from penstock.models.media.image_config import HALF
from penstock.models.media.qwen3_vl_processor import Qwen3VlProcessor
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.qwen_vision import MergerNames, QwenTowerSpec
from penstock.models.towers.tower import MediaSpec
from penstock.models.towers.vision_spec import VisionSpec
from penstock.quant.gguf.gguf_file import GgufFile

DEFAULTS: Final = PixelDefaults(
    image=(56 * 56, 28 * 28 * 1280),
    video=(128 * 32 * 32, 32 * 32 * 768),
    mean=HALF,
    std=HALF,
    budget="video",
    spread="ends",
)

PUBLISHED: Final = replace(
    DEFAULTS, image=(64 * 32 * 32, 16_384 * 32 * 32), video=(4 * 32 * 32, 24_576 * 32 * 32)
)
"""The pixels in the files of the published models, which `mmproj` files lack."""


class Keys(VisionKeys):
    """The keys of `vision_config`. `deepstack_visual_indexes`: the layers of DeepStack."""

    depth: int = 27
    hidden_size: int = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: int = 4304
    patch_size: int = 16
    out_hidden_size: int = 3584
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)


NAMES: Final = replace(
    QWEN2_NAMES, up=("mlp.linear_fc1",), down="mlp.linear_fc2", positions="pos_embed.weight"
)
MERGER: Final = MergerNames("merger.norm", "merger.linear_fc1", "merger.linear_fc2")


def deep_merger(index: int) -> MergerNames:
    """Return the names of a DeepStack merger."""
    root = f"deepstack_merger_list.{index}."
    return MergerNames(f"{root}norm", f"{root}linear_fc1", f"{root}linear_fc2")


def read_folder(folder: Path) -> MediaSpec:
    """See MediaFamily."""
    keys, where = vision_keys(folder, Keys)
    return qwen3_media(keys, where, read_qwen_media(folder, keys, DEFAULTS))


def qwen3_media(keys: Keys, where: str, media: QwenMedia) -> MediaSpec:
    """Return the media side that `keys` describe. Raises ModelError that starts with `where` and
    names the key at fault."""
    count, layers = keys.num_position_embeddings, keys.deepstack_visual_indexes
    if count < 1 or isqrt(count) ** 2 != count:
        raise ModelError(f"{where}: num_position_embeddings {count} is not a square")
    if list(layers) != sorted(set(layers)):
        raise ModelError(f"{where}: deepstack_visual_indexes {layers} do not ascend")
    vision = VisionSpec(
        hidden_size=keys.hidden_size,
        num_heads=keys.num_heads,
        intermediate_size=keys.intermediate_size,
        layers=keys.depth,
        patch_shape=media.grid.patch_shape,
        norm_eps=EPS,
        positions=count,
        rotary_dim=keys.hidden_size // keys.num_heads,
        activation=plain_activation(keys, where),
        taps=layers,
    )
    vision.check(where)
    tower = QwenTowerSpec(
        vision,
        NAMES,
        media.grid,
        MERGER,
        keys.out_hidden_size,
        media.most_patches,
        tuple(map(deep_merger, range(len(layers)))),
    )
    return MediaSpec(Qwen3VlProcessor(media.pixels, media.sampling), (tower,))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """See MediaFamily. The files of Qwen3.5 have no layers of DeepStack."""
    read = read_qwen_mmproj(file, PUBLISHED)
    layers = deep_layers(file)
    names = (f"v.deepstack.{layer}." for layer in layers)
    positions = file.tensors.get(read.sizes.names.positions)
    count = 0 if positions is None else positions.shape[0]
    vision = replace(read.vision, positions=count, taps=layers)
    if not count or isqrt(count) ** 2 != count:
        raise ModelError(f"{file.path}: v.position_embd.weight: {count} rows, not a square")
    vision.check(str(file.path))
    mergers = tuple(MergerNames(f"{name}norm", f"{name}fc1", f"{name}fc2") for name in names)
    tower = replace(read.tower(), vision=vision, deep=mergers)
    processor = Qwen3VlProcessor(read.media.pixels, read.media.sampling)
    return MediaSpec(processor, (MmprojTower(tower, read.width),))


FAMILY = Family(
    gguf=GgufDecoder("qwen3vl"),
    media=MediaFamily(
        "Qwen3VLForConditionalGeneration", read_folder, ("qwen3vl_merger",), read_mmproj
    ),
)
