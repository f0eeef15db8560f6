"""Every supported format is decoded by a process without rights."""

from __future__ import annotations

import numpy as np
import pytest

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
)

# Largest difference of a decoded pixel.
TOLERANCES = {"PNG": 0, "BMP": 0, "GIF": 40, "JPEG": 20, "WEBP": 25, "AVIF": 25}


@pytest.mark.parametrize("name", IMAGE_FORMATS)
def test_an_image_is_decoded(pool, name):
    pixels = picture()
    prepared = pool.prepare("image", image_file(pixels, name))
    assert prepared.shape == pixels.shape
    difference = prepared.array().astype(int) - pixels
    assert np.abs(difference).max() <= TOLERANCES[name]


@pytest.mark.parametrize("name", AUDIO_FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_audio_is_mixed_and_resampled(pool, name, channels):
    rate_hz = 48_000
    prepared = pool.prepare("audio", sound_file(tone(rate_hz, 1.0), rate_hz, name, channels))
    samples = prepared.array()
    assert abs(len(samples) - 16_000) < 1_000  # AAC and Opus add silence
    strength = np.abs(np.fft.rfft(samples[2_000:14_000] * np.hanning(12_000)))
    assert abs(strength.argmax() * 16_000 / 12_000 - 440) < 2
    assert abs(np.abs(samples[4_000:12_000]).max() - 0.5) < 0.03


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_the_frames_of_a_video_are_sampled(pool, name):
    prepared = pool.prepare("video", video_file(gray_frames(30), name))
    assert prepared.shape == (6, 24, 32, 3)  # two per second of three seconds
    np.testing.assert_allclose(prepared.timestamps, np.arange(6) / 2, atol=0.002)
    brightness = prepared.array().mean(axis=(1, 2, 3))
    np.testing.assert_allclose(brightness, 4 * np.arange(0, 30, 5), atol=4)
