"""Audio towers and the numbers of their tokens are those of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tower_runner import check_pieces, encode

from penstock.models.families.registry import media_spec_of_folder
from penstock.models.media.prepared import Sound
from penstock.models.towers.tower import MediaSpec
from tests.support.speech.audio_models import (
    AUDIO_TOKEN,
    CASES,
    LENGTHS,
    RATE,
    save,
    small_model,
    sound,
)


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, case)."""
    case = CASES[request.param]
    model = small_model(case)
    return save(tmp_path_factory.mktemp("audio"), model), model, case


def spec_of(folder: Path) -> MediaSpec:
    spec = media_spec_of_folder(folder)
    assert spec is not None
    return spec


@torch.inference_mode()
def expected_rows(model: Any, case: Any, samples: np.ndarray) -> np.ndarray:
    """Return the embeddings that take the places of audio tokens in transformers' model."""
    heard = case.hears(samples)
    ids = torch.tensor([[5, *[AUDIO_TOKEN] * heard.rows]])
    found: list[torch.Tensor] = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda _, args, kwargs: found.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    model(input_ids=ids, attention_mask=torch.ones_like(ids), **heard.inputs)
    hook.remove()
    return found[0][0, 1:].numpy()


@pytest.mark.parametrize("samples", LENGTHS)
def test_rows_and_tokens_are_those_of_transformers(saved: Any, samples: int) -> None:
    folder, model, case = saved
    spec = spec_of(folder)
    own = sound(samples)
    media = spec.processor.audio(Sound(own, RATE))
    expansion = spec.processor.expand(media, lambda text: [])
    expected = expected_rows(model, case, own)
    assert expansion.token_ids == (AUDIO_TOKEN,) * len(expected)
    assert expansion.runs == ((0, len(expected)),)
    rows = encode(spec, folder, media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-4 * np.abs(expected).max()


def test_rows_do_not_depend_on_the_sizes_of_pieces(saved: Any) -> None:
    folder, *_ = saved
    spec = spec_of(folder)
    check_pieces(spec, folder, spec.processor.audio(Sound(sound(max(LENGTHS)), RATE)))


def test_missing_tensor_is_named(saved: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from penstock.base.errors import ModelError

    folder = saved[0]
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("conv2.bias")}
    save_file(kept, tmp_path / "model.safetensors")
    spec = spec_of(folder)
    media = spec.processor.audio(Sound(sound(2000), RATE))
    with pytest.raises(ModelError, match=r"conv2\.bias is missing"):
        encode(spec, tmp_path, media)
