"""Gemma 4 Unified: the language model of Gemma 4 without inputs per layer. Patches are embedded by
one layer, without a tower. In GGUF files, the language model is that of Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import (
    AssistantFamily,
    Family,
    HfDecoder,
    MediaFamily,
)
from penstock.models.configuration.gemma4_assistant import NAMES as ASSISTANT_NAMES
from penstock.models.configuration.gemma4_assistant import UnifiedAssistantConfig, read_assistant
from penstock.models.configuration.gemma4_media import (
    BUDGETS,
    MediaConfig,
    gemma4_processor,
    published_processor,
)
from penstock.models.configuration.gemma4_text import Gemma4UnifiedTextConfig, text_spec
from penstock.models.configuration.gemma_text import INPUT_NAMES
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.mmproj import matrix_shape, size
from penstock.models.decoder.assistant_spec import AssistantSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.spec_limits import MAX_WIDTH, check_sizes
from penstock.models.media.tiles import Normalization
from penstock.models.towers.gemma4_vision import UnifiedNames, UnifiedTowerSpec
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

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
MMPROJ_NAMES: Final = UnifiedNames(
    first_norm="v.patch_norm.1",
    dense="v.patch_embd",
    second_norm="v.patch_norm.2",
    positions="v.position_embd.weight",
    third_norm="v.patch_norm.3",
    projection="mm.input_projection",
    positions_shape="axes first",
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


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file, whose layer takes the channels of a patch one after
    another. The file's layer for audio is not read. See MediaFamily."""
    patch = size(file, "patch_size")
    pooling = size(file, "projector.scale_factor", VisionConfig().pooling_kernel_size)
    table = file.tensors.get(MMPROJ_NAMES.positions)
    if table is None or len(table.shape) != 3:
        raise ModelError(f"{file.path}: tensor {MMPROJ_NAMES.positions} is missing or no table")
    width, _ = matrix_shape(file, f"{MMPROJ_NAMES.projection}.weight")
    tower = UnifiedTowerSpec(
        MMPROJ_NAMES,
        PLAIN,
        patch * pooling,
        size(file, "embedding_length"),
        table.shape[1],
        width,
        BUDGETS[-1],
        file.real("clip.vision.attention.layer_norm_epsilon"),
        channels_first=True,
    )
    check_sizes(str(file.path), {"elements of a patch": (tower.columns, MAX_WIDTH)})
    return MediaSpec(published_processor(patch, pooling, "tokens"), (MmprojTower(tower, width),))


def spec(config: Gemma4UnifiedTextConfig, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. Unlike in Gemma 4, the tokens of an image
    see each other in every layer."""
    return replace(text_spec(config, where), media_visibility="all")


def tensor_name(name: str) -> str:
    """Return the name by which `NAMES` knows a tensor of a folder. Published folders have the
    layers of the embedder beside its projection."""
    embedder = name.replace("vision_embedder.", "embed_vision.")
    return embedder.replace("embed_vision.embedding_projection", f"embed_vision.{NAMES.projection}")


_HF: Final = HfDecoder(
    "gemma4_unified",
    "Gemma4UnifiedForCausalLM",
    Gemma4UnifiedTextConfig,
    spec,
    INPUT_NAMES,
    model_type="gemma4_unified_text",
    headless="Gemma4UnifiedTextModel",
    is_reranker=False,
)


def assistant_spec(keys: Mapping[str, Any], where: str) -> AssistantSpec:
    """Read an assistant. See AssistantFamily."""
    return read_assistant(keys, _HF, UnifiedAssistantConfig, where)


FAMILY = Family(
    hf=_HF,
    gguf_of="gemma4",
    media=MediaFamily(
        "Gemma4UnifiedForConditionalGeneration",
        read_folder,
        ("gemma4uv",),
        read_mmproj,
        tensor_name,
    ),
    assistant=AssistantFamily(
        "Gemma4UnifiedAssistantForCausalLM",
        "gemma4_unified_assistant",
        assistant_spec,
        ASSISTANT_NAMES,
        ("gemma4", "gemma4_unified"),
    ),
)
