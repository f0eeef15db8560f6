"""Phi-4-multimodal: images and recordings for a Phi-4 that uses an adapter for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import read_model_config, text_width, token_name
from penstock.models.configuration.phi4_media import AudioConfig, VisionConfig
from penstock.models.hub.folder_files import ADAPTERS
from penstock.models.media.audio_processor import AudioProcessor
from penstock.models.media.image_config import ImageConfig, read_image_config, square_or_sides
from penstock.models.media.image_processor import ImageProcessor
from penstock.models.media.images_and_audio import ImagesAndAudio
from penstock.models.media.phi4_audio import Phi4Features
from penstock.models.media.phi4_images import HdRows, HdTiles
from penstock.models.media.tilings import all_grids
from penstock.models.towers.phi4_audio import Phi4AudioTowerSpec
from penstock.models.towers.phi4_vision import Phi4ImageSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaMode, MediaSpec

_ROOT: Final = "model.embed_tokens_extend."
_IMAGES: Final = f"{_ROOT}image_embed."
_MOST_TILES: Final = 144


class Config(msgspec.Struct):
    """The keys of config.json."""

    vision_config: dict[str, Any] = {}
    audio_config: dict[str, Any] = {}


class Phi4ImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers'
    Phi4MultimodalImageProcessor."""

    size: dict[str, int] | int | None = 448
    dynamic_hd: int = 36


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, Config)
    vision = convert_keys(config.vision_config, VisionConfig, f"{where}: vision_config")
    audio = convert_keys(config.audio_config, AudioConfig, f"{where}: audio_config")
    return media_of(folder, vision, audio, ("<|image|>", "<|audio|>"))


def media_of(
    folder: Path, vision: VisionConfig, audio: AudioConfig, placeholders: tuple[str, str]
) -> MediaSpec:
    """Return the media side of a folder with these towers. `placeholders`: of an image and of a
    recording, if the folder does not name them. Raises ModelError."""
    _, keys, where = read_model_config(folder, Config)
    width = text_width(keys, where)
    image_token, audio_token = placeholders
    hearing = Phi4AudioTowerSpec(
        audio.spec(width, f"{where}: audio_config"), (f"{_ROOT}audio_embed.",)
    )
    recordings = AudioProcessor(
        token_name(folder, "audio_token", audio_token),
        audio.audio_token_id,
        Phi4Features(hearing.sizes.mels, hearing.sizes.rows),
    )
    token = token_name(folder, "image_token", image_token)
    images, tower = _images(folder, vision, width, token, f"{where}: vision_config")
    return MediaSpec(ImagesAndAudio(images, recordings), (tower, hearing), modes(folder))


def modes(folder: Path) -> tuple[MediaMode, ...]:
    """Return the adapters of a folder. Recordings beside images are projected in another way.
    Raises ModelError if one is missing."""
    seen, heard = (folder / name for name in ADAPTERS)
    for adapter in (seen, heard):
        if not (adapter / "adapter_config.json").exists():
            raise ModelError(f"{adapter}: adapter_config.json is missing: the model needs it")
    return MediaMode("image", seen, (("audio", 1),)), MediaMode("audio", heard)


def _images(
    folder: Path, vision: VisionConfig, width: int, token: str, where: str
) -> tuple[ImageProcessor, Phi4ImageSpec]:
    settings = read_image_config(folder, Phi4ImageConfig)
    tower = vision.tower(where, f"{_IMAGES}img_processor.")
    across, odd = divmod(tower.side, tower.patch)
    size = square_or_sides(settings.size, "size", str(folder))
    if odd or across % 2 or size != (tower.side, tower.side) or vision.crop_size != tower.side:
        raise ModelError(
            f"{where}: image_size {tower.side}, crop_size {vision.crop_size} and the image"
            f" processor's size {size} must be one even number of patches of {tower.patch} pixels"
        )
    if not 1 <= settings.dynamic_hd <= _MOST_TILES:
        raise ModelError(
            f"{folder}: dynamic_hd must be 1 to {_MOST_TILES}, not {settings.dynamic_hd}"
        )
    projector = ProjectorSpec(
        (_IMAGES,),
        tower.spec.hidden_size,
        (
            ProjectorLayer("img_projection_up", width, activation="gelu"),
            ProjectorLayer("img_projection_down", width),
        ),
    )
    spec = Phi4ImageSpec(
        tower.spec,
        tower.names,
        projector,
        settings.normalization(str(folder)),
        across,
        settings.dynamic_hd,
    )
    spec.check(where)
    tiling = HdTiles(tower.side, tower.patch, all_grids(1, settings.dynamic_hd))
    processor = ImageProcessor(token, vision.image_token_id, tower.patch, tiling, HdRows(across))
    return processor, spec


def convert_keys(keys: dict[str, Any], kind: type[Any], where: str) -> Any:
    """Convert keys to a struct. Raises ModelError that starts with `where`."""
    try:
        return msgspec.convert(keys, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None


FAMILY = Family(media=MediaFamily("Phi4MultimodalForCausalLM", read_folder))
