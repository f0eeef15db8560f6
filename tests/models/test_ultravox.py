"""Ultravox's rows are those of its published computation, and its language model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tower_runner import encode

from penstock.base.errors import ModelError
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.models.media.prepared import Sound
from penstock.models.towers.tower import MediaSpec
from tests.support.speech.audio_models import LENGTHS, RATE, sound
from tests.support.speech.ultravox import small_ultravox, write_config


@pytest.fixture(scope="module", params=[True, False], ids=["norm in the middle", "norm at the end"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, reference)."""
    folder = tmp_path_factory.mktemp("ultravox")
    return folder, small_ultravox(folder, is_middle=request.param)


def spec_of(folder: Path) -> MediaSpec:
    spec = media_spec_of_folder(folder)
    assert spec is not None
    return spec


@pytest.mark.parametrize("samples", LENGTHS)
def test_rows_and_tokens_are_those_of_the_published_computation(saved: Any, samples: int) -> None:
    folder, reference = saved
    spec, own = spec_of(folder), sound(samples)
    media = spec.processor.audio(Sound(own, RATE))
    expected = reference(own).numpy()
    assert spec.processor.expand(media, lambda _: []).runs == ((0, len(expected)),)
    rows = encode(spec, folder, media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-4 * np.abs(expected).max()


def test_shortest_recordings_have_a_row(saved: Any) -> None:
    spec = spec_of(saved[0])
    for samples in (1, 160, 400):
        media = spec.processor.audio(Sound(sound(samples), RATE))
        assert encode(spec, saved[0], media).rows.shape[0] == 1


def test_the_language_model_is_loaded_with_the_tower(saved: Any) -> None:
    model = load_model(files_at(saved[0], "ultravox"), "f32")
    assert model.spec.architecture == "llama"
    assert [spec.kinds for spec in model.media_spec.towers] == [{"audio"}]  # type: ignore[union-attr]
    assert len(model.media) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"text_config": None, "text_model_id": "a/b"}, "text_config is missing; text_model_id is"),
        ({"audio_config": None}, "audio_config is missing"),
        ({"projector_act": "gelu"}, "projector_act must be swiglu"),
        ({"audio_latency_block_size": 100}, "audio_latency_block_size null"),
        ({"stack_factor": 0}, "must be"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    write_config(tmp_path, **keys)
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path)
