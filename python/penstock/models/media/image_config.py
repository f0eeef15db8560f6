"""Reads the settings of image processors from the JSON files of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.media.images import RESAMPLINGS, Size
from penstock.models.media.processor_files import MediaPart, processor_part
from penstock.models.media.tiles import Normalization

LANCZOS: Final = 1
BILINEAR: Final = 2
BICUBIC: Final = 3

Channels: TypeAlias = tuple[float, float, float]

CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
HALF: Final = (0.5, 0.5, 0.5)

_S = TypeVar("_S", bound="ImageConfig")


class ImageConfig(msgspec.Struct):
    """The keys that most image processors read. A family with other keys or other defaults derives
    a struct. Sizes are a number of pixels, or a mapping with the keys `height` and `width`,
    `shortest_edge` or `longest_edge`."""

    size: dict[str, int] | int | None = None
    crop_size: dict[str, int] | int | None = None
    do_resize: bool | None = True
    do_center_crop: bool | None = None
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    rescale_factor: float = 1 / 255
    image_mean: Channels | float = HALF
    image_std: Channels | float = HALF
    resample: int = BICUBIC

    def normalization(self, where: str) -> Normalization:
        """Return the normalization. Raises ModelError naming a key that is not supported."""
        if not self.do_rescale or not self.do_normalize:
            raise ModelError(f"{where}: do_rescale and do_normalize must be true")
        mean, std = _channels(self.image_mean), _channels(self.image_std)
        if min(std) <= 0:
            raise ModelError(f"{where}: the numbers of image_std must be above 0, not {std}")
        return Normalization(mean, std, self.rescale_factor)

    def check(self, where: str) -> None:
        """Check the keys that every processor uses. Raises ModelError naming the key at fault."""
        if not self.do_resize:
            raise ModelError(f"{where}: do_resize false is not supported")
        if self.resample not in RESAMPLINGS:
            raise ModelError(f"{where}: resample {self.resample} is not a filter of Pillow")


def read_image_config(folder: Path, kind: type[_S]) -> _S:
    """Read the settings of the image processor of a folder. Raises ModelError naming file and
    key."""
    return _read(folder, "image_processor", kind)


def read_video_config(folder: Path, kind: type[_S]) -> _S:
    """Read the settings of the video processor of a folder, as `read_image_config` does."""
    return _read(folder, "video_processor", kind)


def square_or_sides(size: Mapping[str, int] | int | None, name: str, where: str) -> Size:
    """Return a size with fixed height and width. Raises ModelError naming the key `name`."""
    if isinstance(size, int):
        height = width = size
    else:
        given = size or {}
        edge = given.get("shortest_edge", 0)
        height, width = given.get("height", edge), given.get("width", edge)
    if height < 1 or width < 1:
        raise ModelError(f"{where}: {name} must have a height and a width, not {size}")
    return height, width


def edge_of(size: Mapping[str, int] | int | None, key: str, name: str, where: str) -> int:
    """Return the entry `key` of a size. Raises ModelError naming the key `name`."""
    edge = size if isinstance(size, int) else (size or {}).get(key, 0)
    if edge < 1:
        raise ModelError(f"{where}: {name} must have {key}, not {size}")
    return edge


def _read(folder: Path, part: MediaPart, kind: type[_S]) -> _S:
    keys, where = processor_part(folder, part)
    if keys is None:
        raise ModelError(f"{where} does not exist, and processor_config.json has no {part}")
    try:
        config = msgspec.convert(keys, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    config.check(where)
    return config


def _channels(values: Channels | float) -> Channels:
    return (values, values, values) if isinstance(values, float) else values
