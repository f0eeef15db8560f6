"""Log-mel features equal those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from penstock.models.media.log_mel import log_mel


def noise(samples: int) -> np.ndarray:
    source = np.random.default_rng(samples)
    return (source.normal(size=samples) * np.linspace(0, 0.3, samples)).astype(np.float32)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("samples", [1_234, 48_123, 16_000 * 30, 16_000 * 41 + 7])
def test_features_are_those_of_transformers(mels: int, samples: int) -> None:
    extractor = WhisperFeatureExtractor(feature_size=mels)
    own = noise(samples)
    expected = extractor(
        own, sampling_rate=16_000, padding=False, truncation=False, return_tensors="np"
    )
    difference = np.abs(log_mel(own, mels) - expected["input_features"][0])
    assert difference.max() <= 1e-5


def test_features_of_a_tone_are_those_of_transformers_in_float64() -> None:
    extractor = WhisperFeatureExtractor(feature_size=128)
    own = noise(50_003) + np.sin(np.arange(50_003) * 0.3).astype(np.float32)
    expected = extractor._np_extract_fbank_features(own[None], "cpu")[0]
    np.testing.assert_allclose(log_mel(own, 128), expected, atol=1e-6)


def test_silence_has_features() -> None:
    assert np.all(log_mel(np.zeros(16_000, np.float32), 80) == -1.5)
