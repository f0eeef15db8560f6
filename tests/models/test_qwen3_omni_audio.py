"""The audio tower of Qwen3-Omni gives the embeddings of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tower_runner import check_pieces, encode, random_weights, save_tower
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeAudioEncoder
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    _get_feat_extract_output_lengths,
)

from penstock.models.families.registry import media_spec_of_folder
from penstock.models.media.prepared import Sound
from tests.support.speech.audio_models import RATE, sound

AUDIO = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "downsample_hidden_size": 16,
    "output_dim": 24,
    "n_window_infer": 200,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, encoder)."""
    config = transformers.Qwen3OmniMoeAudioEncoderConfig(**AUDIO)
    config._attn_implementation = "eager"
    encoder = random_weights(Qwen3OmniMoeAudioEncoder(config))
    folder = tmp_path_factory.mktemp("omni")
    save_tower(folder, encoder, "thinker.audio_tower.")
    keys = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "thinker_config": {"audio_config": AUDIO, "audio_token_id": 7},
    }
    (folder / "config.json").write_text(json.dumps(keys))
    return folder, encoder


# Parts of a chunk, whole chunks, and several windows of two chunks.
@pytest.mark.parametrize("samples", [300, 5_000, 16_000, 31_999, 77_777, 100_001])
def test_rows_and_tokens_are_those_of_transformers(saved: Any, samples: int) -> None:
    folder, encoder = saved
    spec = media_spec_of_folder(Path(folder))
    assert spec is not None
    own = sound(samples)
    media = spec.processor.audio(Sound(own, RATE))
    if samples >= 400:
        extractor = transformers.WhisperFeatureExtractor(feature_size=128)
        made = extractor(own, sampling_rate=RATE, padding=True, truncation=False,
                         return_attention_mask=True, return_tensors="pt")  # fmt: skip
        assert int(made["attention_mask"].sum()) == media.shape[1]
        np.testing.assert_allclose(media.array(), made["input_features"][0], atol=1e-4)
    features = torch.from_numpy(media.array().copy())
    lengths = torch.tensor([features.shape[1]])
    with torch.inference_mode():
        expected = encoder(features, feature_lens=lengths).last_hidden_state.numpy()
    expansion = spec.processor.expand(media, lambda text: [])
    assert expansion.token_ids == (7,) * int(_get_feat_extract_output_lengths(lengths))
    rows = encode(spec, folder, media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-4 * np.abs(expected).max()


def test_rows_do_not_depend_on_the_sizes_of_pieces(saved: Any) -> None:
    folder, _ = saved
    spec = media_spec_of_folder(Path(folder))
    assert spec is not None
    check_pieces(spec, folder, spec.processor.audio(Sound(sound(77_777), RATE)))
