"""Reads the media side of the Qwen-VL models from `mmproj` GGUF files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.base.errors import ModelError
from penstock.models.configuration.mmproj import MmprojVision, matrix_shape, read_vision, size
from penstock.models.configuration.qwen_vl import (
    PixelDefaults,
    QwenMedia,
    VisionKeys,
    default_qwen_media,
)
from penstock.models.towers.qwen_vision import MergerNames, QwenTowerSpec
from penstock.models.towers.vision_spec import VisionSpec
from penstock.quant.gguf.gguf_file import GgufFile

MERGER: Final = MergerNames("v.post_ln", "mm.0", "mm.2")
FRAMES_PER_PATCH: Final = 2
MERGE: Final = 2
DEEP: Final = "clip.vision.is_deepstack_layers"


@dataclass(frozen=True, slots=True)
class QwenMmproj:
    """The parts that all Qwen-VL towers have in an `mmproj` file. `width`: of the language
    model."""

    sizes: MmprojVision
    media: QwenMedia
    vision: VisionSpec
    width: int

    def tower(self) -> QwenTowerSpec:
        """Return the tower without DeepStack and windows."""
        return QwenTowerSpec(
            self.vision,
            self.sizes.names,
            self.media.grid,
            MERGER,
            self.width,
            self.media.most_patches,
        )


def read_qwen_mmproj(file: GgufFile, defaults: PixelDefaults) -> QwenMmproj:
    """Read a Qwen-VL tower. `defaults`: the pixels of the published models, which the files do not
    have. Raises ModelError naming the key or tensor at fault."""
    sizes = read_vision(file)
    keys = VisionKeys(
        depth=sizes.layers,
        num_heads=sizes.num_heads,
        patch_size=sizes.patch,
        spatial_merge_size=size(file, "spatial_merge_size", MERGE),
        temporal_patch_size=FRAMES_PER_PATCH,
    )
    least = size(file, "image_min_pixels", defaults.image[0])
    greatest = size(file, "image_max_pixels", defaults.image[1])
    if least > greatest:
        raise ModelError(f"{file.path}: clip.vision.image_min_pixels: {least}, above {greatest}")
    own = replace(defaults, image=(least, greatest), mean=sizes.mean, std=sizes.std)
    media = default_qwen_media(keys, own)
    vision = VisionSpec(
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        intermediate_size=sizes.intermediate_size,
        layers=sizes.layers,
        patch_shape=media.grid.patch_shape,
        norm_eps=sizes.norm_eps,
        patch_bias="v.patch_embd.bias" in file.tensors,
        rotary_dim=sizes.head_dim,
        activation=sizes.activation,
    )
    width, _ = matrix_shape(file, f"{MERGER.second}.weight")
    return QwenMmproj(sizes, media, vision, width)


def deep_layers(file: GgufFile) -> tuple[int, ...]:
    """Return the layers of DeepStack."""
    return tuple(int(layer) for layer in np.flatnonzero(file.numbers(DEEP)))
