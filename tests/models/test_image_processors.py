"""At the sizes of published models, image processors make the pixels of `transformers`, for images
of any shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from penstock.base.errors import InvalidRequest, ModelError
from tests.support.vision_models import media_spec, normalized_tiles, picture

SIZES = ((1, 1), (1, 500), (37, 91), (768, 1024), (100, 3000))
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": False}
SQUARE = {"height": 336, "width": 336}
NEXT = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
IDEFICS = {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}
SMOLVLM = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
PAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 30,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
PIXTRAL = {"model_type": "pixtral", "hidden_act": "silu", "patch_size": 14, "image_size": 1540}

# The model, its vision_config, the image processor and its settings.
MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "llava-1.5": (
        "Llava",
        CLIP,
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 336}, "crop_size": SQUARE},
    ),
    "llava-1.6": (
        "LlavaNext",
        CLIP,
        "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 336}, "crop_size": SQUARE, "image_grid_pinpoints": NEXT},
    ),
    "llava-onevision": (
        "LlavaOnevision",
        SIGLIP | {"image_size": 384},
        "LlavaOnevisionImageProcessorPil",
        {},
    ),
    "idefics3": (
        "Idefics3",
        {"image_size": 364, "patch_size": 14},
        "Idefics3ImageProcessorPil",
        IDEFICS,
    ),
    "smolvlm": (
        "SmolVLM",
        {"image_size": 512, "patch_size": 16},
        "SmolVLMImageProcessorPil",
        SMOLVLM,
    ),
    "internvl3": (
        "InternVL",
        {"model_type": "internvl_vision", "image_size": 448, "patch_size": 14},
        "GotOcr2ImageProcessorPil",
        {"size": {"height": 448, "width": 448}, "crop_to_patches": True},
    ),
    "gemma-3": (
        "Gemma3",
        SIGLIP | {"image_size": 896},
        "Gemma3ImageProcessorPil",
        {"size": {"height": 896, "width": 896}},
    ),
    "gemma-3 with pan and scan": (
        "Gemma3",
        SIGLIP | {"image_size": 896},
        "Gemma3ImageProcessorPil",
        {"size": {"height": 896, "width": 896}} | PAN,
    ),
    "mistral-small-3.1": (
        "Mistral3",
        PIXTRAL,
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 1540}, "patch_size": {"height": 28, "width": 28}},
    ),
}


@pytest.fixture(scope="module", params=list(MODELS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder with config and image processor, image processor)."""
    name, vision, processor, settings = MODELS[request.param]
    folder: Path = tmp_path_factory.mktemp("model")
    config = getattr(transformers, f"{name}Config")(vision_config=vision)
    config.architectures = [f"{name}ForConditionalGeneration"]
    config.save_pretrained(folder)
    images = getattr(transformers, processor)(**settings)
    images.save_pretrained(folder)
    return folder, images


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_those_of_transformers(saved: Any, size: tuple[int, int]) -> None:
    folder, images = saved
    pixels = picture(*size)
    expected = images([[Image.fromarray(pixels)]], return_tensors="np")["pixel_values"]
    expected = np.asarray(expected).reshape(-1, *np.asarray(expected).shape[-3:])
    spec = media_spec(folder)
    tiles = normalized_tiles(spec, spec.processor.image(pixels))
    assert len(tiles) == len(expected)
    for tile, other in zip(tiles, expected, strict=True):
        rows, columns = tile.shape[1:]  # a tower with whole patches leaves out the rest
        np.testing.assert_allclose(tile, other[:, :rows, :columns], rtol=0, atol=1e-5)


def test_an_image_that_would_become_too_large_is_refused(tmp_path: Path) -> None:
    name, vision, processor, settings = MODELS["llava-1.5"]
    config = getattr(transformers, f"{name}Config")(vision_config=vision)
    config.architectures = [f"{name}ForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    getattr(transformers, processor)(**settings).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match="60000 by 1 pixels"):
        media_spec(tmp_path).processor.image(np.zeros((1, 60_000, 3), np.uint8))


@pytest.mark.parametrize("model", ["llava-1.5", "gemma-3", "llava-1.6"])
def test_images_of_another_size_than_the_tower_takes_are_refused(
    model: str, tmp_path: Path
) -> None:
    name, vision, processor, settings = MODELS[model]
    config = getattr(transformers, f"{name}Config")(vision_config=vision | {"image_size": 42})
    config.architectures = [f"{name}ForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    getattr(transformers, processor)(**settings).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"42|mm_tokens"):
        media_spec(tmp_path)
