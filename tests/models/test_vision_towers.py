"""Image towers give the rows of `transformers` for images of any size, alone and in any pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from vision_models import (
    SIZES,
    built_tower,
    drained,
    encoded,
    joined,
    media_spec,
    native_ops,
    normalized_tiles,
    picture,
    save,
    small_model,
)

from penstock.base.errors import ModelError
from penstock.kernels.reference import ReferenceOps
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
CLIP = {"model_type": "clip_vision_model"}
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]


@dataclass(frozen=True, slots=True)
class Case:
    """A small model and its image processor.

    `text`, `vision`, `whole`: keys of text_config, vision_config and the whole config.
    `inputs`: the outputs of the processor that `get_image_features` takes.
    `sizes`: the (height, width) of the images.
    """

    name: str
    processor: Callable[[], Any]
    text: dict[str, Any]
    vision: dict[str, Any]
    whole: dict[str, Any]
    inputs: tuple[str, ...] = ("pixel_values",)
    sizes: tuple[tuple[int, int], ...] = SIZES


def llava_images(**keys: Any) -> Callable[[], Any]:
    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    return lambda: transformers.LlavaImageProcessorPil(**{**sizes, **keys})


def next_images() -> Any:
    return transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 28},
        crop_size={"height": 28, "width": 28},
        image_grid_pinpoints=PINPOINTS,
    )


def onevision_images() -> Any:
    return transformers.LlavaOnevisionImageProcessorPil(
        size={"height": 28, "width": 28},
        image_grid_pinpoints=[[28 * i, 28 * j] for i in range(1, 6) for j in range(1, 6)],
    )


def idefics_images(name: str, **keys: Any) -> Callable[[], Any]:
    sizes = {"size": {"longest_edge": 84}, "max_image_size": {"longest_edge": 28}}
    return lambda: getattr(transformers, f"{name}ImageProcessorPil")(**sizes, **keys)


def pixtral_images(patch: int) -> Callable[[], Any]:
    sizes = {"size": {"longest_edge": 70}, "patch_size": {"height": patch, "width": patch}}
    return lambda: transformers.PixtralImageProcessorPil(**sizes)


def internvl_images() -> Any:
    return transformers.GotOcr2ImageProcessorPil(
        size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=6
    )


def gemma_images() -> Any:
    return transformers.Gemma3ImageProcessorPil(size={"height": 28, "width": 28})


# transformers fails for images that become less than one pixel high, and for a single row.
PIXTRAL_SIZES = ((15, 1), (2, 100), (37, 91), (64, 48), (150, 10))
LLAMA = {"model_type": "llama"}
QWEN2 = {"model_type": "qwen2"}
MISTRAL = {"model_type": "mistral", "sliding_window": None}
TOKEN = {"image_token_index": 63}
CASES = {
    "llava": Case("Llava", llava_images(), LLAMA, CLIP, TOKEN),
    "llava, two layers, class token, squares": Case(
        "Llava",
        llava_images(do_pad=True),
        LLAMA,
        CLIP | {"hidden_act": "gelu"},
        TOKEN | {"vision_feature_layer": [-3, -1], "vision_feature_select_strategy": "full"},
    ),
    "llava with siglip": Case(
        "Llava",
        llava_images(),
        LLAMA,
        SIGLIP,
        TOKEN
        | {
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "multimodal_projector_bias": False,
        },
    ),
    "llava with pixtral": Case(
        "Llava",
        pixtral_images(7),
        MISTRAL,
        {"model_type": "pixtral", "hidden_act": "silu", "image_size": 70},
        TOKEN | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        ("pixel_values", "image_sizes"),
        PIXTRAL_SIZES,
    ),
    "llava-next": Case(
        "LlavaNext",
        next_images,
        MISTRAL,
        CLIP,
        TOKEN | {"image_grid_pinpoints": PINPOINTS},
        ("pixel_values", "image_sizes"),
    ),
    "llava-onevision": Case(
        "LlavaOnevision",
        onevision_images,
        QWEN2,
        SIGLIP,
        TOKEN
        | {
            "video_token_index": 62,
            "image_grid_pinpoints": [[28 * i, 28 * j] for i in range(1, 6) for j in range(1, 6)],
            "vision_aspect_ratio": "anyres_max_4",
        },
        ("pixel_values", "image_sizes"),
    ),
    "idefics3": Case(
        "Idefics3",
        idefics_images("Idefics3"),
        LLAMA,
        {},
        {"image_token_id": 63},
        ("pixel_values", "pixel_attention_mask"),
    ),
    "idefics3 without tiles": Case(
        "Idefics3",
        idefics_images("Idefics3", do_image_splitting=False),
        LLAMA,
        {},
        {"image_token_id": 63},
        ("pixel_values", "pixel_attention_mask"),
    ),
    "smolvlm, positions of a larger image": Case(
        "SmolVLM",
        idefics_images("SmolVLM"),
        LLAMA,
        {"image_size": 42},
        {"image_token_id": 63, "scale_factor": 4},
        ("pixel_values", "pixel_attention_mask"),
    ),
    "internvl": Case(
        "InternVL",
        internvl_images,
        QWEN2,
        {"model_type": "internvl_vision"},
        {"image_token_id": 63},
    ),
    "internvl, larger tower": Case(
        "InternVL",
        internvl_images,
        QWEN2,
        {
            "model_type": "internvl_vision",
            "norm_type": "rms_norm",
            "use_qk_norm": True,
            "attention_bias": True,
            "image_size": 42,
        },
        {"image_token_id": 63},
    ),
    "gemma3": Case(
        "Gemma3",
        gemma_images,
        {"sliding_window": 5},
        {"model_type": "siglip_vision_model", "vision_use_head": False},
        {"mm_tokens_per_image": 4, "image_token_index": 63},
    ),
    "mistral3": Case(
        "Mistral3",
        pixtral_images(14),
        MISTRAL,
        {"model_type": "pixtral", "hidden_act": "silu", "head_dim": 16, "image_size": 70},
        TOKEN | {"tie_word_embeddings": False},
        ("pixel_values", "image_sizes"),
        PIXTRAL_SIZES,
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, image processor, case)."""
    case = CASES[request.param]
    model, images = small_model(case.name, case.text, case.vision, case.whole), case.processor()
    folder = save(tmp_path_factory.mktemp("model"), model, images)
    return folder, model, images, case


@torch.no_grad()
def expected_rows(model: Any, images: Any, case: Case, pixels: np.ndarray) -> np.ndarray:
    given = images([[Image.fromarray(pixels)]], return_tensors="pt")
    features = model.get_image_features(**{name: given[name] for name in case.inputs})
    return joined(features.pooler_output)


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_pixels_are_those_of_transformers(saved: Any, number: int) -> None:
    folder, _, images, case = saved
    pixels = picture(*case.sizes[number])
    expected = images([[Image.fromarray(pixels)]], return_tensors="pt")["pixel_values"]
    spec = media_spec(folder)
    tiles = normalized_tiles(spec, spec.processor.image(pixels))
    expected = expected.reshape(-1, *expected.shape[-3:]).numpy()
    assert len(tiles) == len(expected)
    np.testing.assert_allclose(np.stack(tiles), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_rows_are_those_of_transformers(saved: Any, number: int) -> None:
    folder, model, images, case = saved
    pixels = picture(*case.sizes[number])
    expected = expected_rows(model, images, case, pixels)
    rows = encoded(folder, media_spec(folder).processor.image(pixels))
    np.testing.assert_allclose(rows, expected, **TOLERANCE)


def test_an_item_has_as_many_tokens_as_rows(saved: Any) -> None:
    folder, *_ = saved
    processor = media_spec(folder).processor
    for size in SIZES:
        media = processor.image(picture(*size))
        expansion = processor.expand(media, lambda text: [len(text)])
        rows = encoded(folder, media)
        assert sum(count for _, count in expansion.runs) == len(rows)


def test_rows_have_the_same_bits_after_other_images_and_in_other_pieces(saved: Any) -> None:
    folder, *_ = saved
    ops, processor = native_ops(), media_spec(folder).processor
    tower: Any = built_tower(folder, ops)
    media = [processor.image(picture(*size, seed=5)) for size in SIZES]
    first = [drained(tower.encode(ops, item))[0].rows for item in media]
    again = [drained(tower.encode(ops, item))[0].rows for item in reversed(media)]
    for one, other in zip(first, reversed(again), strict=True):
        np.testing.assert_array_equal(one, other)
    interleaved = [tower.encode(ops, item) for item in media[2:4]]
    for pieces in interleaved:
        next(pieces)
    for pieces, alone in zip(interleaved, first[2:4], strict=True):
        np.testing.assert_array_equal(drained(pieces)[0].rows, alone)


def test_the_reference_ops_give_the_rows_of_the_native_ones(saved: Any) -> None:
    folder, *_ = saved
    (spec,) = media_spec(folder).towers
    ops = ReferenceOps()
    tower = spec.open(SafetensorsFolder(folder), "auto").build(ops)
    media = media_spec(folder).processor.image(picture(37, 91))
    rows = drained(tower.encode(ops, media))[0].rows
    np.testing.assert_allclose(np.asarray(rows), encoded(folder, media), **TOLERANCE)


def test_a_missing_or_misshapen_tensor_is_named(saved: Any) -> None:
    folder, *_ = saved
    (spec,) = media_spec(folder).towers
    checkpoint = SafetensorsFolder(folder)
    tower: Any = spec
    wider = replace(tower, vision=replace(tower.vision, intermediate_size=50))
    with pytest.raises(ModelError, match=r"tensor .* has shape .*, expected"):
        wider.open(checkpoint, "auto")
    deeper = replace(tower, vision=replace(tower.vision, layers=9))
    with pytest.raises(ModelError, match=r"tensor .* is missing"):
        deeper.open(checkpoint, "auto")
