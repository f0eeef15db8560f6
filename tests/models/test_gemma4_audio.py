"""The audio tower and features of Gemma 4 are those of `transformers`."""

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
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

from penstock.base.errors import ModelError
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.media.prepared import Sound
from penstock.models.towers.tower import MediaSpec
from tests.support.speech.audio_models import RATE, sound

WIDTH, INNER, ROW = 40, 24, 9
AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [128, 8],
    "output_proj_dims": INNER,
}
LIMITS = {"input_max": 2.0, "input_min": -2.0, "output_max": 3.0, "output_min": -3.0}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, tower, projection)."""
    config = transformers.Gemma4AudioConfig(**AUDIO)
    config._attn_implementation = "eager"
    tower = random_weights(Gemma4AudioModel(config))
    for name, limit in tower.named_buffers():
        if (last := name.rpartition(".")[2]) in LIMITS:
            limit.fill_(LIMITS[last])
    projection = 0.2 * torch.randn(WIDTH, INNER)
    tensors = {f"model.audio_tower.{name}": one for name, one in tower.state_dict().items()}
    tensors["model.embed_audio.embedding_projection.weight"] = projection
    folder = tmp_path_factory.mktemp("gemma")
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    write_config(folder, AUDIO)
    return folder, tower, projection


def write_config(folder: Path, audio: dict[str, Any]) -> None:
    keys = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "vision_config": {},
        "text_config": {"hidden_size": WIDTH},
        "audio_config": audio,
        "audio_token_id": ROW,
    }
    (folder / "config.json").write_text(json.dumps(keys))
    (folder / "preprocessor_config.json").write_text("{}")


def spec_of(folder: Path) -> MediaSpec:
    spec = media_spec_of_folder(folder)
    assert spec is not None
    return spec


@pytest.mark.parametrize("samples", [400, 5_000, 16_000, 77_777, 500_123])
def test_features_rows_and_tokens_are_those_of_transformers(saved: Any, samples: int) -> None:
    folder, tower, projection = saved
    spec, own = spec_of(folder), sound(samples)
    media = spec.processor.audio(Sound(own, RATE))
    made = Gemma4AudioFeatureExtractor()([own], return_tensors="pt")
    shown = made["input_features"][0][made["input_features_mask"][0]].numpy()
    np.testing.assert_allclose(media.array(), shown, rtol=0, atol=1e-5)
    with torch.inference_mode():
        found = tower(made["input_features"], made["input_features_mask"])
        states = found.last_hidden_state[0][found.attention_mask[0]]
        normed = states * torch.pow(states.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)
        expected = (normed @ projection.T).numpy()
    expansion = spec.processor.expand(media, lambda text: [1, 2])
    assert expansion.token_ids == (1, 2, *[ROW] * len(expected), 1, 2)
    assert expansion.runs == ((2, len(expected)),)
    rows = encode(spec, folder, media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 1e-4 * np.abs(expected).max()


def test_rows_do_not_depend_on_the_sizes_of_pieces(saved: Any) -> None:
    folder, *_ = saved
    spec = spec_of(folder)
    check_pieces(spec, folder, spec.processor.audio(Sound(sound(77_777), RATE)))


def test_model_reads_images_and_audio(saved: Any) -> None:
    assert set(spec_of(saved[0]).processor.placeholders) == {"image", "video", "audio"}


def test_unsupported_key_is_named(tmp_path: Path) -> None:
    write_config(tmp_path, AUDIO | {"attention_context_right": 2})
    with pytest.raises(ModelError, match="audio_config: attention_context_right must be 0"):
        spec_of(tmp_path)
