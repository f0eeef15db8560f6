"""Samples of decoded audio, and the quality of the resampler."""

from __future__ import annotations

import av
import numpy as np
import pytest
import soundfile

from penstock.base.errors import InvalidRequest
from penstock.media.audio import decode_audio
from penstock.media.formats import StreamFormat, format_for
from penstock.media.limits import MediaLimits
from penstock.media.resampling import Resampler
from tests.support.media_files import sound_file, tone, wav_head

RNG = np.random.default_rng(0)


def decoded(data, rate_hz=16_000, limits=MediaLimits()):  # noqa: B008
    sound = decode_audio(data, format_for("audio", data), limits, rate_hz)
    assert sound.rate == rate_hz
    return sound.samples


def resampled(samples, source_hz, target_hz, chunk=1000):
    resampler = Resampler(source_hz, target_hz)
    parts = [resampler.feed(samples[at : at + chunk]) for at in range(0, len(samples), chunk)]
    return np.concatenate([*parts, resampler.finish()])


@pytest.mark.parametrize("name", ["wav_s16", "wav_s24", "wav_f32", "wav_f64", "flac"])
def test_lossless_samples_at_the_rate_of_the_model_are_exact(name):
    noise = RNG.uniform(-0.9, 0.9, 5000).astype(np.float32)
    samples = np.round(noise * 2**15) / np.float32(2**15)
    np.testing.assert_array_equal(decoded(sound_file(samples, 16_000, name)), samples)


def test_channels_are_averaged(tmp_path):
    both = np.stack([tone(16_000, 0.1), -tone(16_000, 0.1) / 2], 1)
    path = tmp_path / "stereo.wav"
    soundfile.write(path, both, 16_000, subtype="FLOAT")
    np.testing.assert_allclose(decoded(path.read_bytes()), tone(16_000, 0.1) / 4, atol=1e-6)


@pytest.mark.parametrize(
    ("source_hz", "target_hz"),
    [
        (44_100, 16_000),
        (48_000, 16_000),
        (8_000, 16_000),
        (22_050, 24_000),
        (96_000, 16_000),
        (44_101, 16_000),
    ],
)
def test_a_tone_survives_resampling(source_hz, target_hz):
    result = resampled(tone(source_hz, 2.0, 1000.0), source_hz, target_hz)
    assert len(result) == pytest.approx(2 * target_hz, abs=2)
    inner = slice(target_hz // 2, -target_hz // 2)
    times = np.arange(len(result)) / target_hz
    if source_hz == 44_101:  # its ratio is rounded by 0.3 millionths
        assert np.abs(result[inner]).max() == pytest.approx(0.5, abs=1e-3)
        return
    expected = 0.5 * np.sin(2 * np.pi * 1000 * times)
    assert np.abs(result - expected)[inner].max() < 2e-5


def test_frequencies_above_the_new_limit_are_removed():
    result = resampled(tone(48_000, 1.0, 9_000.0), 48_000, 16_000)
    assert np.abs(result[1_000:-1_000]).max() < 1e-4


def test_the_chunks_of_a_stream_do_not_change_the_result():
    noise = RNG.uniform(-1, 1, 700_000).astype(np.float32)
    whole = resampled(noise, 44_100, 16_000, chunk=len(noise))
    np.testing.assert_allclose(resampled(noise, 44_100, 16_000, 9_973), whole, atol=1e-6)


def test_the_resampler_agrees_with_that_of_ffmpeg():
    noise = RNG.normal(0, 0.1, 44_100).astype(np.float32)
    spectrum = np.fft.rfft(noise)
    spectrum[5_000:] = 0  # both keep speech; their slopes near 8 kHz differ
    speech = np.fft.irfft(spectrum).astype(np.float32)
    theirs = av.AudioResampler(format="flt", layout="mono", rate=16_000)
    frame = av.AudioFrame.from_ndarray(speech[None], format="flt", layout="mono")
    frame.rate = 44_100
    expected = np.concatenate(
        [f.to_ndarray()[0] for f in (*theirs.resample(frame), *theirs.resample(None))]
    )
    ours = resampled(speech, 44_100, 16_000)
    assert len(ours) == pytest.approx(len(expected), abs=2)
    inner = slice(1_000, 15_000)
    error = np.sqrt(np.mean((ours[inner] - expected[inner]) ** 2))
    assert error < 2e-3 * np.sqrt(np.mean(expected[inner] ** 2))


def test_loud_float_samples_are_clipped():
    assert np.abs(decoded(sound_file(4 * tone(16_000, 0.1), 16_000, "wav_f32"))).max() == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_must_be_finite(value):
    samples = tone(16_000, 0.1)
    samples[100] = value
    with pytest.raises(InvalidRequest, match="not finite") as caught:
        decoded(sound_file(samples, 16_000, "wav_f32"))
    assert caught.value.code == "invalid_audio"


@pytest.mark.parametrize("name", ["wav_s16", "flac", "vorbis", "mp3", "m4a", "webm"])
def test_audio_over_the_limit_is_refused(name):
    data = sound_file(tone(48_000, 3.0), 48_000, name)
    with pytest.raises(InvalidRequest, match="longer than 2 seconds") as caught:
        decoded(data, limits=MediaLimits(max_duration_s=2))
    assert caught.value.code == "media_too_large"


def test_an_undeclared_duration_is_limited_while_decoding():
    live = bytearray(sound_file(tone(16_000, 3.0), 16_000, "wav_s16"))
    live[4:8] = live[40:44] = b"\xff\xff\xff\xff"
    assert len(decoded(bytes(live))) == 48_000
    with pytest.raises(InvalidRequest, match="longer than 2 seconds"):
        decoded(bytes(live), limits=MediaLimits(max_duration_s=2))


def test_ten_hours_are_refused_by_the_header():
    declared = sound_file(np.zeros(100, np.float32), 16_000, "flac")
    head = bytearray(declared)
    total = 10 * 3600 * 16_000
    head[21] = head[21] & 0xF0 | total >> 32
    head[22:26] = (total & 0xFFFFFFFF).to_bytes(4, "big")
    with pytest.raises(InvalidRequest, match="longer than 3600 seconds"):
        decoded(bytes(head))


def test_audio_without_samples_is_refused():
    with pytest.raises(InvalidRequest) as caught:
        decoded(wav_head(0))
    assert caught.value.code == "invalid_audio"


@pytest.mark.parametrize("name", ["wav_s16", "m4a", "mkv"])
def test_a_truncated_file_is_refused(name):
    data = sound_file(RNG.uniform(-1, 1, 48_000).astype(np.float32), 48_000, name)
    with pytest.raises(InvalidRequest, match="truncated"):
        decoded(data[: len(data) * 2 // 3])


def test_a_tag_at_the_end_of_an_mp3_is_ignored():
    data = sound_file(tone(44_100, 1.0), 44_100, "mp3")
    tagged = data + b"TAG" + b"\0" * 125
    assert abs(len(decoded(tagged)) - 16_000) < 500


def test_an_id3_tag_may_precede_mp3_and_flac():
    tag = b"ID3\4\0\0\0\0\1\0" + bytes(128)
    for name, expected in (("mp3", StreamFormat.MP3), ("flac", StreamFormat.FLAC)):
        data = tag + sound_file(tone(44_100, 1.0), 44_100, name)
        assert format_for("audio", data) is expected
        assert abs(len(decoded(data)) - 16_000) < 500


def test_a_video_without_audio_is_refused():
    from tests.support.media_files import gray_frames, video_file

    with pytest.raises(InvalidRequest, match="no audio"):
        decoded(video_file(gray_frames(3), "h264"))
