"""Image towers of CLIP and SigLIP give the vectors of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tests.support.vision_models import (
    SIZES,
    VISION,
    encoded,
    media_spec,
    picture,
    randomized,
    save,
)

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "projection_size": 32,
}
SQUARE = {"height": 28, "width": 28}


def clip() -> tuple[Any, Any]:
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=24)
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=SQUARE)
    return transformers.CLIPModel(config), images


def clip_vision() -> tuple[Any, Any]:
    config = transformers.CLIPVisionConfig(**VISION, projection_dim=24)
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=SQUARE)
    return transformers.CLIPVisionModelWithProjection(config), images


def siglip() -> tuple[Any, Any]:
    config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
    return transformers.SiglipModel(config), transformers.SiglipImageProcessorPil(size=SQUARE)


def siglip2() -> tuple[Any, Any]:
    vision = VISION | {"num_patches": 16}
    del vision["image_size"]
    config = transformers.Siglip2Config(text_config=TEXT, vision_config=vision)
    images = transformers.Siglip2ImageProcessorPil(patch_size=7, max_num_patches=30)
    return transformers.Siglip2Model(config), images


@pytest.fixture(scope="module", params=[clip, clip_vision, siglip, siglip2])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, image processor)."""
    model, images = request.param()
    model.config._attn_implementation = "eager"
    return save(tmp_path_factory.mktemp("model"), randomized(model), images), model, images


@torch.no_grad()
def expected_vector(model: Any, images: Any, pixels: np.ndarray) -> np.ndarray:
    given = images(Image.fromarray(pixels), return_tensors="pt")
    if isinstance(model, transformers.CLIPVisionModelWithProjection):
        vector = model(**given).image_embeds
    else:
        vector = model.get_image_features(**given).pooler_output
    return torch.nn.functional.normalize(vector).numpy()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_vector_is_that_of_transformers(saved: Any, size: tuple[int, int]) -> None:
    folder, model, images = saved
    pixels = picture(*size)
    vector = encoded(folder, media_spec(folder).processor.image(pixels))
    expected = expected_vector(model, images, pixels)
    np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=2e-5)


def test_different_images_have_different_vectors(saved: Any) -> None:
    folder: Path = saved[0]
    processor = media_spec(folder).processor
    first, second = (encoded(folder, processor.image(picture(64, 48, seed))) for seed in (1, 2))
    assert np.abs(first - second).max() > 1e-3
