"""Decodes images and animated images with Pillow."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.base.errors import InvalidRequest
from penstock.media.formats import ImageFormat
from penstock.media.limits import MediaLimits
from penstock.media.sampling import FrameTimes, frame_size, sampled_frames
from penstock.models.media.prepared import Frames, MediaKind, Pixels

if TYPE_CHECKING:
    from PIL import Image as PillowImage

MAX_ANIMATION_FRAMES: Final = 10_000
DEFAULT_FRAME_MS: Final = 100
"""Duration of a frame that declares none, as browsers show it."""

_ORIENTATION_TAG: Final = 0x0112
# Malformed EXIF data of a valid image must not make the image unusable.
_EXIF_ERRORS: Final = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error,
)  # fmt: skip


def load_plugins() -> None:
    """Import all modules of Pillow that decoding needs. A sealed process can import no more."""
    from PIL import (  # noqa: F401
        AvifImagePlugin,
        BmpImagePlugin,
        GifImagePlugin,
        Image,
        JpegImagePlugin,
        MpoImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.MAX_IMAGE_PIXELS = None  # `MediaLimits.check_size` is stricter, and does not warn


def supported_formats() -> list[ImageFormat]:
    """Return the formats that this build of Pillow decodes: some lack AVIF."""
    from PIL import features

    return [one for one in ImageFormat if one is not ImageFormat.AVIF or features.check("avif")]


def decode_image(data: bytes, image_format: ImageFormat, limits: MediaLimits) -> Pixels:
    """Return the pixels of an image, or of the first frame of an animated image.

    Raises InvalidRequest if it is too large, and exceptions of Pillow if it is damaged.
    """
    with _open("image", data, image_format, limits) as image:
        return np.asarray(_oriented(_rgb(_loaded("image", image, limits)), _orientation(image)))


def decode_animation(
    data: bytes, image_format: ImageFormat, limits: MediaLimits, frame_times: FrameTimes
) -> Frames:
    """Return the sampled frames of an animated image. An image without motion has one frame.

    Raises as `decode_image` does.
    """
    with _open("video", data, image_format, limits) as image:
        count = getattr(image, "n_frames", 1)
        if count > MAX_ANIMATION_FRAMES:
            raise InvalidRequest(
                f"the video has more than {MAX_ANIMATION_FRAMES} frames", code="media_too_large"
            )
        ends = np.cumsum([_frame_seconds(image, index, limits) for index in range(count)])
        duration_s = float(ends[-1])
        limits.check_duration("video", duration_s)
        starts = np.concatenate([[0.0], ends[:-1]])
        indices = sampled_frames(starts, duration_s, frame_times, limits)
        size = frame_size(image.width, image.height, len(indices), limits)
        frames = np.empty((len(indices), size[1], size[0], 3), np.uint8)
        for row, index in enumerate(indices):
            if row and indices[row - 1] == index:
                frames[row] = frames[row - 1]
                continue
            image.seek(index)
            frame = _rgb(_loaded("video", image, limits))
            frames[row] = np.asarray(frame if frame.size == size else frame.resize(size))
    return Frames(frames, tuple(starts[indices].tolist()), duration_s)


def _open(
    kind: MediaKind, data: bytes, image_format: ImageFormat, limits: MediaLimits
) -> PillowImage.Image:
    from PIL import Image

    if image_format is ImageFormat.WEBP:  # Pillow allocates the whole canvas when it opens the file
        limits.check_size(kind, *_webp_size(data))
    image = Image.open(BytesIO(data), formats=[image_format.name])
    limits.check_size(kind, *image.size)
    return image


def _loaded(kind: MediaKind, image: PillowImage.Image, limits: MediaLimits) -> PillowImage.Image:
    limits.check_size(kind, *image.size)  # a frame of a GIF may be larger than the GIF
    image.load()
    return image


def _frame_seconds(image: PillowImage.Image, index: int, limits: MediaLimits) -> float:
    """Return the duration of a frame, which some formats only know once it is decoded."""
    image.seek(index)
    _loaded("video", image, limits)
    return float(image.info.get("duration") or DEFAULT_FRAME_MS) / 1000


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height in the header of a WebP file, (0, 0) if it has none."""
    match data[12:16]:
        case b"VP8X" if len(data) >= 30:
            return (
                1 + int.from_bytes(data[24:27], "little"),
                1 + int.from_bytes(data[27:30], "little"),
            )
        case b"VP8L" if len(data) >= 25:
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 " if len(data) >= 30:
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case _:
            return 0, 0


def _orientation(image: PillowImage.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except _EXIF_ERRORS:
        return 1
    return value if isinstance(value, int) else 1


def _oriented(image: PillowImage.Image, orientation: int) -> PillowImage.Image:
    """Return the image as a viewer shows it. `orientation`: the value of the EXIF tag, 1 to 8."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _rgb(image: PillowImage.Image) -> PillowImage.Image:
    """Return a loaded image in RGB, over a white background if it has transparent pixels."""
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        high = np.asarray(image) >> 8
        return Image.fromarray(high.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    over = image.convert("RGBA")
    white = Image.new("RGBA", over.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, over).convert("RGB")
