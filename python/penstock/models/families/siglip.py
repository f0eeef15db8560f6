"""SigLIP, and SigLIP 2 with images of fixed size: embeds images by a tower whose patches are pooled
by attention, and texts of fixed length by a tower whose last token is projected."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, HfEncoder, MediaFamily
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.text_towers import (
    TEXT_TOWER_NAMES,
    read_text_config,
    text_encoder_spec,
    tokenizer_config,
)
from penstock.models.configuration.vision_config import vision_of
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.text_tower import PaddedTexts, TextTower
from penstock.models.families.clip import IMAGE
from penstock.models.media.image_config import ImageConfig, read_image_config, square_or_sides
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.media.tilings import SingleTile
from penstock.models.towers.image_embedder import ImageEmbedderSpec, ProbeHead
from penstock.models.towers.tower import MediaSpec

HEAD = ProbeHead("head.")
HEAD_ROOTS = ("vision_model.",)
_TEXT: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "vocab_size": 32_000,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""The defaults of transformers' SiglipTextConfig and Siglip2TextConfig."""


class SiglipConfig(msgspec.Struct):
    """The keys of config.json."""

    vision_config: dict[str, Any] = {}


class SiglipImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' SiglipImageProcessor."""

    size: dict[str, int] | int | None = 224


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, SiglipConfig)
    images = read_image_config(folder, SiglipImageConfig)
    keys = {"model_type": "siglip_vision_model", **config.vision_config}
    vision = vision_of(keys, where, ("",))
    if keys.get("vision_use_head") is False:
        raise ModelError(f"{where}: vision_use_head false is not supported")
    size = square_or_sides(images.size, "size", str(folder))
    if size != (vision.side, vision.side):
        raise ModelError(f"{folder}: size must be {vision.side}, the side of the tower's images")
    tower = ImageEmbedderSpec(
        vision.spec, vision.names, HEAD, HEAD_ROOTS, images.normalization(where), vision.patches
    )
    tiling = SingleTile(size, images.resample)
    return MediaSpec(ImageProcessor(IMAGE, 0, vision.patch, tiling, PlainRows()), (tower,))


def text_spec(path: Path) -> EncoderSpec:
    """Read the spec of the text tower from a config.json. Raises ModelError naming the key at
    fault."""
    return text_encoder_spec(path, read_text_config(path, _TEXT), causal=False)


def projection_width(path: Path) -> int:
    """Return the elements of an embedding, which a config.json gives."""
    config = read_text_config(path, _TEXT)
    return config.hidden_size if config.projection_size is None else config.projection_size


def text_tower(path: Path) -> TextTower:
    """Read the projection and the form of texts from the folder of a config.json. SigLIP's
    tokenizer removes punctuation; SigLIP 2 has the tokenizer of Gemma."""
    own = tokenizer_config(path.parent).tokenizer_class in (None, "SiglipTokenizer")
    return TextTower(
        "text_model.head",
        projection_width(path),
        biased=True,
        form="bare words" if own else "as given",
        padding=PaddedTexts("</s>" if own else "<pad>", "right"),
    )


FAMILY = Family(
    hf=HfEncoder("siglip", "SiglipModel", text_spec, TEXT_TOWER_NAMES, text_tower=text_tower),
    media=MediaFamily("SiglipModel", read_folder),
)
