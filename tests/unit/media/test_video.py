"""Sampled frames of decoded videos."""

from __future__ import annotations

from io import BytesIO

import av
import numpy as np
import pytest

from penstock.base.errors import InvalidRequest
from penstock.media.formats import format_for
from penstock.media.limits import MediaLimits
from penstock.media.sampling import sampled_frames
from penstock.media.video import decode_video
from tests.support.media_files import gray_frames, picture, sound_file, tone, video_file

LIMITS = MediaLimits()


def decoded(data, times, limits=LIMITS):
    return decode_video(data, format_for("video", data), limits, lambda duration, count: times)


def brightness(frames):
    return frames.pixels.mean(axis=(1, 2, 3)) / 4


@pytest.mark.parametrize("key_every", [1, 7, 250])
@pytest.mark.parametrize("name", ["h264", "h265", "vp8", "vp9", "av1", "mkv"])
def test_frames_are_found_by_their_times(name, key_every):
    data = video_file(gray_frames(50), name, key_every=key_every)
    frames = decoded(data, [0.0, 0.3, 0.31, 1.96, 3.5, 4.9, 100.0])
    assert frames.timestamps == pytest.approx([0, 0.3, 0.3, 2.0, 3.5, 4.9, 4.9], abs=0.002)
    assert brightness(frames) == pytest.approx([0, 3, 3, 20, 35, 49, 49], abs=1)
    assert frames.duration_s == pytest.approx(5.0, abs=0.002)


def test_all_frames_can_be_sampled():
    data = video_file(gray_frames(40), "h264", key_every=9)
    frames = decoded(data, np.arange(40) / 10, MediaLimits(max_frames=64))
    assert brightness(frames) == pytest.approx(np.arange(40), abs=1)


def test_the_processor_gets_duration_and_number_of_frames():
    given = []

    def times(duration_s, num_frames):
        given.append((round(duration_s, 2), num_frames))
        return [0.0]

    for name in ("h264", "vp9", "mkv"):
        data = video_file(gray_frames(25), name)
        decode_video(data, format_for("video", data), LIMITS, times)
    assert given == [(2.5, 25)] * 3


def test_the_number_of_frames_is_limited():
    data = video_file(gray_frames(50), "h264")
    frames = decoded(data, np.arange(50) / 10, MediaLimits(max_frames=5))
    assert frames.timestamps == pytest.approx([0, 1.2, 2.4, 3.7, 4.9], abs=0.101)


def test_pixels_of_a_frame_are_limited():
    data = video_file(gray_frames(3, 64, 64), "h264")
    with pytest.raises(InvalidRequest, match="64 x 64 pixels") as caught:
        decoded(data, [0.0], MediaLimits(max_pixels=2000))
    assert caught.value.code == "media_too_large"


def test_many_large_frames_are_scaled_down():
    data = video_file(gray_frames(10, 64, 64), "h264")
    limits = MediaLimits(max_pixels=64 * 64)
    frames = decoded(data, np.arange(10) / 10, limits)
    assert 0 < frames.pixels.size / 3 <= 2 * limits.max_pixels
    assert brightness(frames) == pytest.approx(np.arange(10), abs=1)


def test_the_duration_is_limited():
    data = video_file(gray_frames(30), "h264", fps=1)
    with pytest.raises(InvalidRequest, match="longer than 20 seconds"):
        decoded(data, [0.0], MediaLimits(max_duration_s=20))


def test_a_truncated_video_is_refused():
    data = video_file(gray_frames(60), "h264")
    with pytest.raises(InvalidRequest, match="truncated"):
        decoded(data[:-100], [0.0])


def test_audio_alone_is_no_video():
    with pytest.raises(InvalidRequest, match="no video"):
        decoded(sound_file(tone(48_000, 0.2), 48_000, "m4a"), [0.0])


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_the_rotation_of_a_phone_is_applied(turn):
    upright = picture(48, 32)
    data = rotated_video(upright, turn)
    frames = decoded(data, [0.0])
    expected = np.rot90(upright, -turn // 90)
    assert frames.pixels[0].shape == expected.shape
    assert np.abs(frames.pixels[0].astype(int) - expected).mean() < 6


def rotated_video(pixels, clockwise):
    """An MP4 file whose track header asks players to turn the frames clockwise."""
    data = bytearray(video_file([pixels] * 3, "h264"))
    at = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    matrix = {
        0: (one, 0, 0, one),
        90: (0, one, -one, 0),
        180: (-one, 0, 0, -one),
        270: (0, -one, one, 0),
    }[clockwise]
    for offset, value in zip((0, 4, 12, 16), matrix, strict=True):
        data[at + offset : at + offset + 4] = value.to_bytes(4, "big", signed=True)
    return bytes(data)


def test_the_decoded_frame_is_that_of_ffmpeg():
    data = video_file([picture(48, 32)] * 3, "h264")
    with av.open(BytesIO(data)) as container:
        expected = next(container.decode(video=0)).to_ndarray(format="rgb24")
    np.testing.assert_array_equal(decoded(data, [0.0]).pixels[0], expected)


@pytest.mark.parametrize(
    ("times", "expected"),
    [([0.0], [0]), ([0.04, 0.06], [0, 1]), ([0.2, 0.2], [2, 2]), ([9.0, 0.0], [0, 3])],
)
def test_the_nearest_frame_is_taken(times, expected):
    starts = np.array([0, 0.1, 0.2, 0.3])
    assert sampled_frames(starts, 0.4, lambda duration, count: times, LIMITS) == expected


def test_a_processor_must_ask_for_a_frame():
    with pytest.raises(InvalidRequest, match="too short"):
        sampled_frames(np.zeros(1), 0.0, lambda duration, count: [], LIMITS)
