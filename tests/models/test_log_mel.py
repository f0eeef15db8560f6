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
    own = noise(samples) + 0.1 * np.sin(np.arange(samples) * 0.3).astype(np.float32)
    features = log_mel(own, mels)
    in_float64 = extractor._np_extract_fbank_features(own[None], "cpu")[0]
    np.testing.assert_allclose(features, in_float64, rtol=0, atol=1e-6)
    public = extractor(
        own, sampling_rate=16_000, padding=False, truncation=False, return_tensors="np"
    )
    # With torch installed, the extractor computes in float32.
    np.testing.assert_allclose(features, public["input_features"][0], rtol=0, atol=1e-4)


def test_silence_has_features() -> None:
    assert np.all(log_mel(np.zeros(16_000, np.float32), 80) == -1.5)
