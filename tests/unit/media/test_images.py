"""Pixels of decoded images, as viewers and transformers show them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageOps

from penstock.base.errors import InvalidRequest
from penstock.media.formats import ImageFormat, format_for
from penstock.media.images import decode_animation, decode_image, load_plugins
from penstock.media.limits import MediaLimits
from tests.support.media_files import animation_file, gray_frames, image_file, picture

LIMITS = MediaLimits()
load_plugins()


def decoded(data, limits=LIMITS):
    return decode_image(data, format_for("image", data), limits)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied(orientation, name):
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"quality": 100} if name == "JPEG" else {"lossless": True} if name == "WEBP" else {}
    data = image_file(picture(30, 20), name, exif=exif, **lossless)
    with Image.open(BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(decoded(data), expected)
    assert decoded(data).shape[:2] == ((20, 30) if orientation < 5 else (30, 20))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_malformed_exif_is_ignored():
    data = image_file(picture(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\xff garbage")
    np.testing.assert_array_equal(decoded(data), picture())


def test_transparent_pixels_become_white():
    rgba = np.dstack([picture(), np.full((24, 32), 255, np.uint8)])
    rgba[:12, :, 3] = 0
    rgba[12:14, :, 3] = 128
    pixels = decoded(image_file(Image.fromarray(rgba), "PNG"))
    assert (pixels[:12] == 255).all()
    np.testing.assert_array_equal(pixels[14:], picture()[14:])
    blended = (picture()[12:14].astype(float) * 128 + 255 * 127) / 255
    assert np.abs(pixels[12:14] - blended).max() <= 1


@pytest.mark.parametrize("mode", ["L", "1", "LA", "P", "RGBA", "RGB"])
def test_modes_of_png_become_rgb(mode):
    image = Image.fromarray(picture()).convert(mode)
    np.testing.assert_array_equal(
        decoded(image_file(image, "PNG")), np.asarray(image.convert("RGB"))
    )


def test_a_palette_with_a_transparent_color_is_put_over_white():
    image = Image.new("P", (4, 2), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((0, 0), 0)
    pixels = decoded(image_file(image, "PNG", transparency=0))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[1, 3].tolist() == [40, 50, 60]


def test_cmyk_becomes_rgb():
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = decoded(image_file(image, "JPEG", quality=100))[4, 4].tolist()
    assert red > 240 and green < 15 and blue < 15


def test_16_bit_gray_keeps_its_high_bits():
    values = np.arange(0, 65536, 256, np.uint16).reshape(16, 16)
    pixels = decoded(image_file(Image.fromarray(values), "PNG"))
    assert (pixels == (values >> 8)[..., None]).all()


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF"])
def test_one_pixel_is_an_image(name):
    assert decoded(image_file(picture(1, 1), name)).shape == (1, 1, 3)


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG"])
def test_an_animated_image_shows_its_first_frame(name):
    assert decoded(animation_file(gray_frames(5)[1:], name, 100)).mean() == pytest.approx(4, abs=1)


@pytest.mark.parametrize(
    ("name", "head_bytes"),
    [("PNG", 60), ("JPEG", 640), ("WEBP", 40), ("GIF", 800), ("BMP", 60), ("AVIF", 2000)],
)
def test_an_image_with_too_many_pixels_is_refused_by_its_header(name, head_bytes):
    data = image_file(picture(64, 64), name)[:head_bytes]
    with pytest.raises(InvalidRequest, match="64 x 64 pixels") as caught:
        decoded(data, MediaLimits(max_pixels=1000))
    assert caught.value.code == "media_too_large"


def test_a_side_is_limited():
    with pytest.raises(InvalidRequest, match="no side"):
        decoded(image_file(np.zeros((1, 40_000, 3), np.uint8), "PNG"))


def all_times(duration_s, num_frames):
    return np.arange(num_frames) * duration_s / num_frames


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG"])
def test_frames_of_an_animation_have_times(name):
    data = animation_file(gray_frames(6), name, 250)
    frames = decode_animation(data, format_for("video", data), LIMITS, all_times)
    assert frames.timestamps == pytest.approx([0, 0.25, 0.5, 0.75, 1.0, 1.25])
    assert frames.duration_s == pytest.approx(1.5)
    assert frames.pixels.mean(axis=(1, 2, 3)) == pytest.approx(4 * np.arange(6), abs=2)


def test_a_still_image_is_a_video_of_one_frame():
    data = image_file(picture(), "PNG")
    frames = decode_animation(data, ImageFormat.PNG, LIMITS, all_times)
    assert frames.timestamps == (0.0,)
    np.testing.assert_array_equal(frames.pixels[0], picture())


def test_a_frame_larger_than_its_gif_is_refused():
    data = bytearray(image_file(picture(64, 64), "GIF"))
    data[6:10] = (8).to_bytes(2, "little") * 2  # the size of the canvas, not that of the frame
    with pytest.raises(InvalidRequest, match="at most 1024 pixels"):
        decoded(bytes(data), MediaLimits(max_pixels=1024))


def test_long_animations_are_refused():
    data = animation_file(gray_frames(4), "GIF", 60_000)
    with pytest.raises(InvalidRequest, match="longer than 120 seconds") as caught:
        decode_animation(data, ImageFormat.GIF, MediaLimits(max_duration_s=120), all_times)
    assert caught.value.code == "media_too_large"


def test_many_large_frames_are_scaled_down():
    data = animation_file(gray_frames(10, 64, 64), "WEBP", 100)
    limits = MediaLimits(max_pixels=64 * 64)
    frames = decode_animation(data, ImageFormat.WEBP, limits, all_times)
    assert len(frames.timestamps) == 10
    assert frames.pixels[0].size // 3 * 10 <= 2 * limits.max_pixels
    assert frames.pixels.mean(axis=(1, 2, 3)) == pytest.approx(4 * np.arange(10), abs=2)
