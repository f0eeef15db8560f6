"""Converts the content of messages in embedded use: texts, images, recordings and videos."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.base.data_url import SCHEME, decode_base64, decode_data_url
from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, Image, Part, Text, Video
from penstock.media.formats import kind_of
from penstock.models.media.prepared import MediaKind

if TYPE_CHECKING:
    from PIL import Image as PillowImage

Source: TypeAlias = str | bytes | PathLike[str]
"""A URL (https:, http: or data:), the bytes of a file, or the path of a file."""
Recording: TypeAlias = tuple[npt.NDArray[np.floating[Any]], int]
"""(samples [N] from -1 to 1, samples per second)"""
ContentPart: TypeAlias = "str | Part | Mapping[str, Any] | PillowImage.Image | Source"
Content: TypeAlias = "str | Sequence[ContentPart]"

_KINDS: Final[Mapping[MediaKind, type[Image | Audio | Video]]] = {
    "image": Image,
    "audio": Audio,
    "video": Video,
}
_D = TypeVar("_D")
_FLOAT_WAVE: Final = 3
_CHANNELS: Final = (1, 3, 4)


def content_parts(content: Content, where: str) -> tuple[Part, ...]:
    """Return the parts of a message. `where`: the field, for error messages.

    `content` is a text or a sequence of

    - texts and the parts of `penstock.dialog`;
    - dictionaries of the chat API: `text`, `image_url`, `audio_url`, `video_url`, `input_audio`;
    - dictionaries {"type": "image", "image": ...}, and the same for `audio` and `video`, with a
      Source, for an image also a Pillow image or an array [height, width, 3] of bytes, and for
      audio also (samples, samples per second);
    - Pillow images, and the paths and bytes of files whose kind is told from their content.

    Raises InvalidRequest, and OSError for a file that cannot be read.
    """
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be a text or a list of parts", field=where)
    return tuple(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> Part:
    match part:
        case str():
            return Text(part)
        case Text() | Image() | Audio() | Video():
            return part
        case Mapping():
            return _of_dictionary(part, where)
        case bytes() | PathLike():
            return _of_file(part, where)
        case _ if hasattr(part, "convert") and hasattr(part, "save"):
            return Image(data=_png(part), mime_type="image/png")
        case _:
            raise InvalidRequest(f"{where} has the type {type(part).__name__}", field=where)


def _of_dictionary(part: Mapping[str, Any], where: str) -> Part:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return Text(part["text"])
    if kind == "input_audio" and isinstance(part.get("input_audio"), Mapping):
        return _media("audio", _base64(part["input_audio"].get("data"), where), where)
    for media in _KINDS:
        if kind == f"{media}_url" and kind in part:
            given = part[kind]
            return _media(media, given.get("url") if isinstance(given, Mapping) else given, where)
        if kind == media and media in part:
            return _media(media, part[media], where)
    raise InvalidRequest(
        f"{where} must be a part of a message: text, image_url, audio_url, video_url, input_audio,"
        " image, audio or video",
        field=where,
    )


def _media(kind: MediaKind, source: Any, where: str) -> Part:
    make = _KINDS[kind]
    match source:
        case str() if source[: len(SCHEME)].lower() == SCHEME:
            data, mime_type = _decoded(lambda: decode_data_url(source), where)
            return make(data=data, mime_type=mime_type)
        case str() if source.startswith(("http://", "https://")):
            return make(url=source)
        case bytes():
            return make(data=source)
        case PathLike():
            return make(data=Path(source).read_bytes())
        case np.ndarray() if kind == "image":
            return make(data=_png(_from_array(source, where)), mime_type="image/png")
        case (np.ndarray() as samples, int(rate)) if kind == "audio":
            return make(data=_wave(samples, rate, where), mime_type="audio/wav")
        case _ if kind == "image" and hasattr(source, "convert") and hasattr(source, "save"):
            return make(data=_png(source), mime_type="image/png")
        case _:
            raise InvalidRequest(
                f"{where} must have an https:, http: or data: URL, bytes, or a Path", field=where
            )


def _of_file(source: bytes | PathLike[str], where: str) -> Part:
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    kind = kind_of(data)
    if kind is None:
        raise InvalidRequest(f"{where} is not an image, a recording or a video", field=where)
    return _KINDS[kind](data=data)


def _base64(data: Any, where: str) -> bytes:
    if isinstance(data, bytes):
        return data
    return _decoded(lambda: decode_base64(str(data)), where)


def _decoded(decode: Callable[[], _D], where: str) -> _D:
    try:
        return decode()
    except ValueError:
        raise InvalidRequest(f"{where} is not valid base64", field=where) from None


def _png(image: PillowImage.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _from_array(pixels: npt.NDArray[Any], where: str) -> PillowImage.Image:
    try:
        from PIL import Image as PillowImage
    except ImportError:
        raise InvalidRequest(
            "images given as arrays need Pillow: pip install 'penstock[media]'", field=where
        ) from None
    has_channels = pixels.ndim == 3 and pixels.shape[2] in _CHANNELS
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or has_channels):
        raise InvalidRequest(
            f"{where} must be an array of bytes [height, width, 3], not {pixels.dtype}"
            f" {list(pixels.shape)}",
            field=where,
        )
    single = pixels.ndim == 3 and pixels.shape[2] == 1
    return PillowImage.fromarray(np.ascontiguousarray(pixels[:, :, 0] if single else pixels))


def _wave(samples: npt.NDArray[Any], rate: int, where: str) -> bytes:
    """Return a WAV file of 32-bit floats."""
    if samples.ndim != 1 or samples.dtype.kind != "f" or not 0 < rate < 2**31:
        raise InvalidRequest(
            f"{where} must be (samples, rate): an array [N] of floats, samples per second",
            field=where,
        )
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", _FLOAT_WAVE, 1, rate, 4 * rate, 4, 32)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) + len(data)) + b"WAVE" + chunks + data
