"""Small models of the vision-language families, with their image processors, for comparison with
`transformers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers

from tests.support.vision_models import SIZES

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


PAN_AND_SCAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 10,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def panned_images() -> Any:
    return transformers.Gemma3ImageProcessorPil(size={"height": 28, "width": 28}, **PAN_AND_SCAN)


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
        ("pixel_values", "image_sizes", "batch_num_images"),
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
    "gemma3 with pan and scan": Case(
        "Gemma3",
        panned_images,
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
