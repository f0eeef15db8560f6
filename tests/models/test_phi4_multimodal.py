"""The towers, processors and tokens of Phi-4-multimodal are those of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tower_runner import encode_with
from transformers import Phi4MultimodalForCausalLM
from transformers.models.phi4_multimodal.feature_extraction_phi4_multimodal import (
    Phi4MultimodalFeatureExtractor,
)

from penstock.base.errors import InvalidRequest, ModelError
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.hub.folder_files import adapter_files, is_complete
from penstock.models.media.phi4_images import HdGrid
from penstock.models.media.prepared import PreparedMedia, Sound
from penstock.models.media.tiles import TileLayout
from penstock.models.towers.tower import MediaSpec
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from tests.support.checkpoints.small_phi4_multimodal import write_small_phi4_multimodal
from tests.support.media.phi4_images import prepared
from tests.support.speech.audio_models import RATE, sound


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_phi4_multimodal(tmp_path_factory.mktemp("phi4"))


@pytest.fixture(scope="module")
def spec(folder: Path) -> MediaSpec:
    found = media_spec_of_folder(folder)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """Return transformers' model."""
    return Phi4MultimodalForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def picture(height: int, width: int) -> np.ndarray:
    """Return a smooth picture with some noise."""
    source = np.random.default_rng(height * width)
    rows, columns = np.mgrid[:height, :width]
    shades = [rows * 255 // height, columns * 255 // width, (rows + columns) % 256]
    noise = source.integers(0, 30, (height, width, 3))
    return np.clip(np.stack(shades, -1) + noise, 0, 255).astype(np.uint8)


def tiles_of(media: PreparedMedia) -> np.ndarray:
    """Return the normalized pixels of the tiles, [tiles, 3, 448, 448]."""
    grid = HdGrid(*TileLayout.of(media).extra)
    patches = media.array().reshape(grid.rows * grid.columns, 32, 32, 14, 14, 3)
    pixels = patches.transpose(0, 5, 1, 3, 2, 4).reshape(-1, 3, 448, 448)
    return (pixels / np.float32(255) - 0.5) / 0.5


UNCHANGED = [(448, 448), (300, 448), (317, 448), (448, 30), (896, 700), (448, 1344), (1011, 1344)]
"""Sizes of images that fill the width or the height of their tiles, and so keep their pixels."""


@pytest.mark.parametrize("size", UNCHANGED)
def test_tokens_and_pixels_of_images_that_keep_their_size(
    spec: MediaSpec, size: tuple[int, int]
) -> None:
    image = picture(*size)
    media = spec.processor.image(image)
    made = prepared(image)
    np.testing.assert_allclose(tiles_of(media), made["image_pixel_values"][0, 1:], atol=1e-5)
    assert spec.processor.expand(media, lambda _: []).runs == ((0, made["num_img_tokens"]),)


@pytest.mark.parametrize("size", [(64, 64), (500, 333), (333, 1700), (4000, 3100), (120, 9000)])
def test_tokens_and_pixels_of_resized_images(spec: MediaSpec, size: tuple[int, int]) -> None:
    """Pillow and torchvision round resized pixels differently."""
    image = picture(*size)
    media = spec.processor.image(image)
    made = prepared(image)
    expected = made["image_pixel_values"][0, 1:].numpy()
    assert np.abs(tiles_of(media) - expected).max() <= 1.01 * 2 / 255
    assert np.abs(tiles_of(media) - expected).mean() <= 0.05 * 2 / 255
    assert spec.processor.expand(media, lambda _: []).runs == ((0, made["num_img_tokens"]),)


def test_a_line_is_refused(spec: MediaSpec) -> None:
    with pytest.raises(InvalidRequest, match="no size that the model takes"):
        spec.processor.image(picture(2, 9000))


@pytest.mark.parametrize("size", UNCHANGED)
def test_rows_of_images(
    folder: Path, spec: MediaSpec, reference: Any, size: tuple[int, int]
) -> None:
    image = picture(*size)
    media = spec.processor.image(image)
    made = prepared(image)
    count = made.pop("num_img_tokens")
    expected = embedded(reference, reference.config.vision_config.image_token_id, count, made)
    rows = encode_with(spec, SafetensorsFolder(folder), media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-4 * np.abs(expected).max()


@pytest.mark.parametrize("samples", [300, 400, 5_000, 16_001, 77_777, 640_240, 800_123])
@pytest.mark.parametrize("beside_images", [False, True])
def test_features_rows_and_tokens_of_recordings(
    folder: Path, spec: MediaSpec, reference: Any, samples: int, beside_images: bool
) -> None:
    own = sound(samples)
    media = spec.processor.audio(Sound(own, RATE))
    given = np.pad(own, (0, max(0, 400 - samples)))
    made = Phi4MultimodalFeatureExtractor()([given], sampling_rate=RATE, return_tensors="pt")
    np.testing.assert_allclose(media.array(), made["audio_input_features"][0], atol=1e-5)
    count = int(made["audio_embed_sizes"][0])
    assert spec.processor.expand(media, lambda _: []).runs == ((0, count),)
    mode = "vision" if beside_images else "speech"
    embed = reference.model.embed_tokens_extend.audio_embed
    token = reference.config.audio_config.audio_token_id
    width = reference.config.hidden_size
    with torch.inference_mode():
        expected = embed(
            torch.full((1, count), token),
            torch.zeros(1, count, width),
            audio_projection_mode=mode,
            **made,
        )[0].numpy()
    layout = (1,) if beside_images else ()
    media = PreparedMedia(media.kind, media.data, media.dtype, media.shape, layout)
    rows = encode_with(spec, SafetensorsFolder(folder), media).rows
    assert rows.shape == expected.shape
    assert np.abs(rows - expected).max() <= 2e-4 * np.abs(expected).max()


@torch.inference_mode()
def embedded(reference: Any, token: int, count: int, inputs: Any) -> np.ndarray:
    """Return the embeddings that take the places of an image's tokens."""
    embed = reference.model.embed_tokens_extend.image_embed
    given = torch.zeros(1, count, reference.config.hidden_size)
    return embed(torch.full((1, count), token), given, **inputs)[0].numpy()


def test_modalities_of_a_folder(folder: Path, spec: MediaSpec) -> None:
    seen, heard = spec.modes
    assert (seen.kind, seen.adapter) == ("image", folder / "vision-lora")
    assert (heard.kind, heard.adapter) == ("audio", folder / "speech-lora")


def test_a_missing_adapter_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(ModelError, match=r"vision-lora: adapter_config\.json is missing"):
        media_spec_of_folder(tmp_path)


def test_the_adapters_are_files_of_the_model(folder: Path) -> None:
    assert is_complete(folder)
    assert set(adapter_files(folder)) == {
        f"{name}/{file}"
        for name in ("vision-lora", "speech-lora")
        for file in ("adapter_config.json", "adapter_model.safetensors")
    }


def test_unsupported_key_is_named(folder: Path, tmp_path: Path) -> None:
    config = (
        (folder / "config.json")
        .read_text()
        .replace('"num_blocks"', '"chunk_size": 18, "num_blocks"')
    )
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ModelError, match="audio_config: chunk_size must be -1"):
        media_spec_of_folder(tmp_path)
