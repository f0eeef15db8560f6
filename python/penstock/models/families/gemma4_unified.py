"""Gemma 4 Unified: patches are embedded by one layer, without a tower. Its language model is not
supported."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.gemma4_media import BUDGETS, MediaConfig, gemma4_processor
from penstock.models.configuration.media_config import read_model_config
from penstock.models.decoder.spec import MAX_WIDTH, check_sizes
from penstock.models.media.tiles import Normalization
from penstock.models.towers.gemma4_vision import UnifiedNames, UnifiedTowerSpec
from penstock.models.towers.tower import MediaSpec

PLAIN: Final = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class VisionConfig(msgspec.Struct):
    """The keys of `vision_config`, with the defaults of transformers'
    Gemma4UnifiedVisionConfig."""

    patch_size: int = 16
    pooling_kernel_size: int = 3
    mm_embed_dim: int = 3840
    mm_posemb_size: int = 1120
    rms_norm_eps: float = 1e-6


NAMES: Final = UnifiedNames(
    first_norm="patch_ln1",
    dense="patch_dense",
    second_norm="patch_ln2",
    positions="pos_embedding",
    third_norm="pos_norm",
    projection="multimodal_embedder.embedding_projection",
    roots=("model.embed_vision.", "embed_vision."),
)


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, MediaConfig)
    where = f"{where}: vision_config"
    try:
        vision = msgspec.convert(config.vision_config, VisionConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    side = vision.patch_size * vision.pooling_kernel_size
    check_sizes(
        where,
        {
            "elements of a patch": (3 * side**2, MAX_WIDTH),
            "mm_embed_dim": (vision.mm_embed_dim, MAX_WIDTH),
            "mm_posemb_size": (vision.mm_posemb_size, MAX_WIDTH),
        },
    )
    tower = UnifiedTowerSpec(
        NAMES,
        PLAIN,
        side,
        vision.mm_embed_dim,
        vision.mm_posemb_size,
        config.width(where),
        BUDGETS[-1],
        vision.rms_norm_eps,
    )
    processor = gemma4_processor(
        folder, config, vision.patch_size, vision.pooling_kernel_size, "tokens"
    )
    return MediaSpec(processor, (tower,))


FAMILY = Family(media=MediaFamily("Gemma4UnifiedForConditionalGeneration", read_folder))
