"""The audio tower and features of Gemma 3n are those of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tower_runner import check_pieces, encode, random_weights
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor
from transformers.models.gemma3n.modeling_gemma3n import (
    Gemma3nAudioEncoder,
    Gemma3nMultimodalEmbedder,
)

from penstock.base.errors import ModelError
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.media.prepared import Sound
from penstock.models.towers.tower import MediaSpec
from tests.support.speech.audio_models import RATE, sound

WIDTH, ROW, TOKENS = 40, 9, 188
AUDIO: dict[str, Any] = {
    "hidden_size": 32,
    "conf_num_hidden_layers": 2,
    "conf_num_attention_heads": 2,
    "sscp_conv_channel_size": [16, 8],
    "vocab_size": 6,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, tower, embedder)."""
    config = transformers.Gemma3nAudioConfig(**AUDIO)
    text = transformers.Gemma3nTextConfig(hidden_size=WIDTH)
    tower = random_weights(Gemma3nAudioEncoder(config))
    embedder = random_weights(Gemma3nMultimodalEmbedder(config, text))
    tensors = {f"model.audio_tower.{name}": one for name, one in tower.state_dict().items()}
    tensors |= {f"model.embed_audio.{name}": one for name, one in embedder.state_dict().items()}
    folder = tmp_path_factory.mktemp("gemma3n")
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    write_config(folder, AUDIO)
    return folder, tower, embedder


def write_config(folder: Path, audio: dict[str, Any]) -> None:
    keys = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "text_config": {"hidden_size": WIDTH},
        "audio_config": audio,
        "audio_token_id": ROW,
    }
    (folder / "config.json").write_text(json.dumps(keys))


def spec_of(folder: Path) -> MediaSpec:
    spec = media_spec_of_folder(folder)
    assert spec is not None
    return spec


@pytest.mark.parametrize("samples", [640, 5_000, 16_000, 77_777, 500_123])
def test_features_rows_and_tokens_are_those_of_transformers(saved: Any, samples: int) -> None:
    folder, tower, embedder = saved
    spec, own = spec_of(folder), sound(samples)
    media = spec.processor.audio(Sound(own, RATE))
    made = Gemma3nAudioFeatureExtractor()([own], return_tensors="pt")
    assert made["input_features_mask"].all(), "a recording alone has no padded frames"
    np.testing.assert_allclose(media.array(), made["input_features"][0], rtol=0, atol=1e-5)
    with torch.inference_mode():
        found = tower(made["input_features"], ~made["input_features_mask"])
        rows = embedder(inputs_embeds=found.last_hidden_state)[0]
        padding = embedder(input_ids=torch.tensor([[embedder.vocab_offset + 5]]))[0]
        expected = torch.cat([rows, padding.expand(TOKENS - len(rows), WIDTH)]).numpy()
    expansion = spec.processor.expand(media, lambda text: [1, 2])
    assert expansion.token_ids == (1, 2, *[ROW] * TOKENS, 1, 2)
    assert expansion.runs == ((2, TOKENS),)
    rows = encode(spec, folder, media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-4 * np.abs(expected).max()


def test_rows_do_not_depend_on_the_sizes_of_pieces(saved: Any) -> None:
    folder, *_ = saved
    spec = spec_of(folder)
    check_pieces(spec, folder, spec.processor.audio(Sound(sound(77_777), RATE)))


def test_texts_around_the_rows(saved: Any) -> None:
    texts: list[str] = []
    spec = spec_of(saved[0])
    media = spec.processor.audio(Sound(sound(100), RATE))
    spec.processor.expand(media, lambda text: texts.append(text) or [])
    assert texts == ["\n\n<start_of_audio>", "<end_of_audio>\n\n"]
    assert media.shape[0] == 1, "a recording shorter than a frame ends with silence"


def test_unsupported_key_is_named(tmp_path: Path) -> None:
    write_config(tmp_path, AUDIO | {"conf_residual_weight": 1.0})
    with pytest.raises(ModelError, match=r"audio_config: conf_residual_weight must be 0\.5"):
        spec_of(tmp_path)
