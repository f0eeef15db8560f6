"""Detects the format of media from their first bytes. MIME types and file names are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

from penstock.base.errors import InvalidRequest
from penstock.models.media.prepared import MediaKind


class ImageFormat(Enum):
    """Formats of images and animated images, which Pillow decodes. The values are their names."""

    PNG = "PNG"
    JPEG = "JPEG"
    GIF = "GIF"
    WEBP = "WebP"
    BMP = "BMP"
    AVIF = "AVIF"


class StreamFormat(Enum):
    """Formats of audio and video, which PyAV decodes. MP4 includes MOV and M4A, and Matroska
    includes WebM."""

    WAV = "WAV"
    FLAC = "FLAC"
    OGG = "Ogg"
    MP3 = "MP3"
    MP4 = "MP4"
    MATROSKA = "WebM"


MediaFormat: TypeAlias = ImageFormat | StreamFormat

FORMATS: Final[Mapping[MediaKind, tuple[MediaFormat, ...]]] = {
    "image": tuple(ImageFormat),
    "audio": tuple(StreamFormat),
    "video": (
        StreamFormat.MP4,
        StreamFormat.MATROSKA,
        ImageFormat.GIF,
        ImageFormat.WEBP,
        ImageFormat.PNG,
        ImageFormat.AVIF,
    ),
}

_PREFIXES: Final[tuple[tuple[bytes, MediaFormat], ...]] = (
    (b"\x89PNG\r\n\x1a\n", ImageFormat.PNG),
    (b"\xff\xd8\xff", ImageFormat.JPEG),
    (b"GIF87a", ImageFormat.GIF),
    (b"GIF89a", ImageFormat.GIF),
    (b"BM", ImageFormat.BMP),
    (b"fLaC", StreamFormat.FLAC),
    (b"OggS", StreamFormat.OGG),
    (b"\x1a\x45\xdf\xa3", StreamFormat.MATROSKA),
)
_RIFF_TYPES: Final[Mapping[bytes, MediaFormat]] = {
    b"WEBP": ImageFormat.WEBP,
    b"WAVE": StreamFormat.WAV,
}
_REFUSED: Final = (
    (b"%PDF", "PDF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\0\0\x01\0", "ICO"),
    (b"8BPS", "PSD"),
    (b"%!PS", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"#EXTM3U", "M3U"),
    (b"FLV\1", "FLV"),
)
_SVG: Final = re.compile(rb"\s*(<\?xml|<!DOCTYPE svg|<!--|<svg)", re.IGNORECASE)
_AVIF_BRANDS: Final = (b"avif", b"avis")
_HEIF_BRANDS: Final = (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1")
_AUDIO_BRANDS: Final = (b"M4A ", b"M4B ")
_QUICKTIME_BOXES: Final = (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
_MPEG_LAYER_3: Final = 1


def format_for(kind: MediaKind, data: bytes) -> MediaFormat:
    """Return the format of `data`. Raises InvalidRequest if it is not a format of `kind`."""
    found = _media_format(data)
    if found in FORMATS[kind]:
        return found
    *first, last = (supported.value for supported in FORMATS[kind])
    supported = f"supported are {', '.join(first)} and {last}"
    name = found.value if found is not None else _refused_name(data)
    if name is None:
        raise InvalidRequest(
            f"the format of the {kind} is not known; {supported}", code=f"invalid_{kind}"
        )
    raise InvalidRequest(
        f"the {kind} has the format {name}; {supported}", code="unsupported_media_format"
    )


def kind_of(data: bytes) -> MediaKind | None:
    """Return the kind of a file from its first bytes, None if it has no format of media. MP4 and
    Matroska files are videos, unless an MP4 file declares that it has audio only."""
    match _media_format(data):
        case None:
            return None
        case ImageFormat():
            return "image"
        case StreamFormat.MP4 if data[8:12] not in _AUDIO_BRANDS:
            return "video"
        case StreamFormat.MATROSKA:
            return "video"
        case _:
            return "audio"


def _media_format(data: bytes) -> MediaFormat | None:
    for prefix, name in _PREFIXES:
        if data.startswith(prefix):
            return name
    if data[:4] == b"RIFF":
        return _RIFF_TYPES.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _iso_format(data)
    if data[4:8] in _QUICKTIME_BOXES:
        return StreamFormat.MP4
    if data[:3] == b"ID3":
        return _after_id3(data)
    return StreamFormat.MP3 if _starts_mp3_frame(data) else None


def _iso_format(data: bytes) -> MediaFormat | None:
    """Return the format of a file with an ISO `ftyp` box, from its brands."""
    end = min(int.from_bytes(data[:4], "big"), 256)
    brands = [data[8:12], *(data[at : at + 4] for at in range(16, end, 4))]
    if any(brand in _AVIF_BRANDS for brand in brands):
        return ImageFormat.AVIF
    return None if brands[0] in _HEIF_BRANDS else StreamFormat.MP4


def _after_id3(data: bytes) -> MediaFormat:
    """Return the format of a file that starts with an ID3 tag, which MP3 and FLAC may have."""
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    flac = data[10 + size : 14 + size] == b"fLaC"
    return StreamFormat.FLAC if flac else StreamFormat.MP3


def _starts_mp3_frame(data: bytes) -> bool:
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    layer, bit_rate, sample_rate = data[1] >> 1 & 3, data[2] >> 4, data[2] >> 2 & 3
    return layer == _MPEG_LAYER_3 and bit_rate != 15 and sample_rate != 3


def _refused_name(data: bytes) -> str | None:
    """Return the name of a format that is known and refused."""
    for prefix, name in _REFUSED:
        if data.startswith(prefix):
            return name
    if data[4:8] == b"ftyp":
        return "HEIF"
    return "SVG or XML" if _SVG.match(data[:256].removeprefix(b"\xef\xbb\xbf")) else None
