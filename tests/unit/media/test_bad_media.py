"""Hostile and wrong files get an error with a field and a code, and harm no other request."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from penstock.base.errors import InvalidRequest
from penstock.media.limits import MediaLimits
from tests.support.media_files import (
    AUDIO_FORMATS,
    IMAGE_FORMATS,
    VIDEO_FORMATS,
    gray_frames,
    image_file,
    picture,
    sound_file,
    tone,
    video_file,
    wav_head,
)


def png_of(width, height, compressed):
    """A PNG file with any header and any compressed pixels."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", compressed),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


ZEROS = zlib.compress(bytes(10_000_000))
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
PLAYLIST = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
UNKNOWN, UNSUPPORTED, LARGE = "invalid_{}", "unsupported_media_format", "media_too_large"

BAD = {
    "no bytes": ("image", b"", UNKNOWN),
    "text": ("image", b"hello", UNKNOWN),
    "null bytes": ("video", bytes(1000), UNKNOWN),
    "an SVG image": ("image", SVG, UNSUPPORTED),
    "an SVG image with a prolog": (
        "image",
        b"\xef\xbb\xbf\n<?xml version='1.0'?>" + SVG,
        UNSUPPORTED,
    ),
    "an SVG image as video": ("video", SVG, UNSUPPORTED),
    "a playlist with a local file": ("video", PLAYLIST, UNSUPPORTED),
    "a playlist as audio": ("audio", PLAYLIST, UNSUPPORTED),
    "a PDF file": ("image", b"%PDF-1.7\n", UNSUPPORTED),
    "a PostScript file": ("image", b"%!PS-Adobe-3.0 EPSF-3.0\n", UNSUPPORTED),
    "a JPEG 2000 file": ("image", b"\0\0\0\x0cjP  \r\n\x87\n", UNSUPPORTED),
    "a TIFF file": ("image", image_file(picture(), "TIFF"), UNSUPPORTED),
    "an ICO file": ("image", image_file(picture(), "ICO"), UNSUPPORTED),
    "a HEIF file": ("image", b"\0\0\0\x18ftypheic\0\0\0\0heicmif1", UNSUPPORTED),
    "100 megapixels": ("image", png_of(10_000, 10_000, ZEROS), LARGE),
    "a bomb in a header": ("image", png_of(2**31 - 1, 2**31 - 1, ZEROS), LARGE),
    "no pixels": ("image", png_of(0, 5, ZEROS), UNKNOWN),
    "missing pixels": ("image", png_of(5_000, 5_000, ZEROS), UNKNOWN),
    "a GIF canvas of 4 gigapixels": (
        "video",
        b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\1\0\0;",
        LARGE,
    ),
    "a WebP canvas of 268 megapixels": (
        "image",
        b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\xff\x3f\0\xff\x3f\0",
        LARGE,
    ),
    "audio as an image": ("image", sound_file(tone(8_000, 0.1), 8_000, "wav_s16"), UNSUPPORTED),
    "an image as audio": ("audio", image_file(picture(), "PNG"), UNSUPPORTED),
    "video as an image": ("image", video_file(gray_frames(2), "h264"), UNSUPPORTED),
    "a web page": ("image", b"<!DOCTYPE html><html></html>", UNKNOWN),
    "script before a PNG file": ("image", b"<script>" + image_file(picture(), "PNG"), UNKNOWN),
    "a PNG in a PDF file": ("image", b"%PDF-1.4\n" + image_file(picture(), "PNG"), UNSUPPORTED),
    "audio without samples": ("audio", wav_head(0), UNKNOWN),
    "only the head of audio": ("audio", wav_head(10 * 3600 * 16_000), UNKNOWN),
    "a rate of 1 Hz": ("audio", wav_head(10, 1) + bytes(20), UNKNOWN),
    "65,535 channels": (
        "audio",
        wav_head(10)[:22] + b"\xff\xff" + wav_head(10)[24:] + bytes(20),
        UNKNOWN,
    ),
    "another codec": (
        "audio",
        wav_head(10)[:20] + b"\x22\x00" + wav_head(10)[22:] + bytes(20),
        UNSUPPORTED,
    ),
    "a Matroska head": ("video", b"\x1a\x45\xdf\xa3" + bytes(100), UNKNOWN),
    "an MP4 head": ("video", b"\0\0\0\x18ftypisom\0\0\0\0isomiso2", UNKNOWN),
    "a box of 2^63 bytes": ("video", b"\0\0\0\1moov\x7f" + b"\xff" * 7 + bytes(50), UNKNOWN),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(pool, name):
    kind, data, code = BAD[name]
    with pytest.raises(InvalidRequest) as caught:
        pool.prepare(kind, data, "messages[0].content[1]")
    error = caught.value
    assert error.field == "messages[0].content[1]"
    assert error.code == code.format(kind)
    assert error.message.startswith("the ")
    assert not any(hint in error.message for hint in ("/", "Error", "0x", "object at", "Errno"))


def test_bad_files_do_not_end_the_process(pool):
    pool.prepare("image", image_file(picture(), "PNG"))
    (before,) = pool.decoders.pids
    for kind, data, _ in BAD.values():
        with pytest.raises(InvalidRequest):
            pool.prepare(kind, data)
    assert pool.decoders.pids == [before]


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_a_truncated_image_is_refused(pool, name):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = image_file(noise, name)
    with pytest.raises(InvalidRequest) as caught:
        pool.prepare("image", data[: len(data) * 2 // 3])
    assert caught.value.code == "invalid_image"


@pytest.mark.parametrize("name", [*AUDIO_FORMATS, *VIDEO_FORMATS])
def test_any_prefix_of_a_file_is_prepared_or_refused(pool, name):
    audio = name in AUDIO_FORMATS and name != "mkv"
    data = (
        sound_file(tone(16_000, 0.2), 48_000, name) if audio else video_file(gray_frames(6), name)
    )
    for length in np.linspace(1, len(data) - 1, 15).astype(int):
        try:
            pool.prepare("audio" if audio else "video", data[:length])
        except InvalidRequest as error:
            assert error.field == "input"


def test_a_polyglot_is_what_its_first_bytes_say(pool):
    archive = b"PK\x03\x04" + bytes(100)
    pixels = pool.prepare("image", image_file(picture(), "PNG") + archive).array()
    np.testing.assert_array_equal(pixels, picture())


def test_an_item_over_the_byte_limit_is_not_sent_to_a_process(pool):
    data = b"\xff\xd8\xff" + bytes(MediaLimits().max_bytes)
    with pytest.raises(InvalidRequest, match="at most 67108864 are allowed") as caught:
        pool.prepare("image", data)
    assert caught.value.code == "media_too_large"


def test_a_compressed_text_bomb_in_a_png_is_refused(pool):
    bomb = b"bomb\0\0" + zlib.compress(bytes(200_000_000))
    data = image_file(picture(), "PNG")
    chunk = struct.pack(">I", len(bomb)) + b"zTXt" + bomb
    chunk += struct.pack(">I", zlib.crc32(chunk[4:]))
    with pytest.raises(InvalidRequest) as caught:
        pool.prepare("image", data[:33] + chunk + data[33:])
    assert caught.value.code == "invalid_image"
