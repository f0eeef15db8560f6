"""The media side of Gemma 4 and Gemma 4 Unified gives the pixels and rows of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmproj_export import Conversion, convert_gemma4, convert_gemma4_unified, export
from safetensors.numpy import load_file
from safetensors.torch import save_file
from tower_runner import check_pieces, encode, encode_with, random_weights
from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4MultimodalEmbedder,
    Gemma4VisionModel,
)
from transformers.models.gemma4_unified.configuration_gemma4_unified import (
    Gemma4UnifiedVisionConfig,
)
from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedVisionEmbedder

from penstock.base.errors import ModelError
from penstock.models.families import gemma4, gemma4_unified
from penstock.models.families.registry import media_spec_of_mmproj
from penstock.models.media.prepared import Frames
from penstock.models.media.tiles import TileLayout
from penstock.quant.gguf.gguf_file import GgufFile
from tests.support.vision_models import picture

WIDTH = 48
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 600,
}
UNIFIED = {
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 40,
    "mm_posemb_size": 300,
    "output_proj_dims": 40,
}
SIZES = [(64, 48), (37, 91), (300, 40), (1, 1), (500, 700)]


def write_config(folder: Path, vision: dict[str, Any], **images: Any) -> None:
    text = {"hidden_size": WIDTH, "use_bidirectional_attention": "vision"}
    config = {"vision_config": vision, "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    keys = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70, "do_normalize": False}
    for name in ("preprocessor_config", "video_preprocessor_config"):
        (folder / f"{name}.json").write_text(json.dumps(keys | images))


def save(folder: Path, **modules: torch.nn.Module) -> None:
    tensors = {f"{root.replace('__', '.')}.{name}": value.contiguous()
               for root, module in modules.items()
               for name, value in module.state_dict().items()}  # fmt: skip
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module", params=[{}, {"use_clipped_linears": True, "standardize": True}])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, tower and projector of transformers)."""
    keys = TOWER | request.param
    config = Gemma4VisionConfig(**keys)
    config._attn_implementation = "eager"
    tower = random_weights(Gemma4VisionModel(config))
    for name, buffer in tower.named_buffers():
        if name.startswith("std_"):
            buffer.copy_(torch.randn_like(buffer) + 2)
        elif name.endswith("_min"):
            buffer.fill_(-1.5)
        elif name.endswith("_max"):
            buffer.fill_(1.25)
    embedder = random_weights(Gemma4MultimodalEmbedder(config, SimpleNamespace(hidden_size=WIDTH)))
    folder = tmp_path_factory.mktemp("model")
    save(folder, model__vision_tower=tower, model__embed_vision=embedder)
    write_config(folder, keys)
    return folder, tower, embedder


@torch.no_grad()
def expected(tower: Any, embedder: Any, image: np.ndarray) -> np.ndarray:
    """Return the rows that transformers computes for an image."""
    processor = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70)
    given = processor(images=[image], return_tensors="pt", input_data_format="channels_last")
    states = tower(given["pixel_values"].float(), given["image_position_ids"]).last_hidden_state
    rows: np.ndarray = embedder(states).numpy()
    return rows


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_images_equal_those_of_transformers(model: Any, size: tuple[int, int]) -> None:
    folder, tower, embedder = model
    spec = gemma4.read_folder(folder)
    rows = encode(spec, folder, spec.processor.image(picture(*size))).rows
    wanted = expected(tower, embedder, picture(*size))
    np.testing.assert_allclose(rows, wanted, atol=1e-4 * np.abs(wanted).max())


def test_rows_do_not_depend_on_the_sizes_of_pieces(model: Any) -> None:
    folder, *_ = model
    spec = gemma4.read_folder(folder)
    check_pieces(spec, folder, spec.processor.image(picture(*SIZES[-1])))


def test_frames_are_images_of_their_own_after_their_times(model: Any) -> None:
    folder, tower, embedder = model
    spec = gemma4.read_folder(folder)
    pixels = np.stack([picture(40, 60, seed) for seed in (1, 2)])
    video = spec.processor.video(Frames(pixels, (0.0, 65.5), 70.0))
    rows = encode(spec, folder, video).rows
    wanted = np.concatenate([expected(tower, embedder, frame) for frame in pixels])
    np.testing.assert_allclose(rows, wanted, atol=1e-4 * np.abs(wanted).max())
    expansion = spec.processor.expand(video, lambda text: list(text.encode()))
    count = len(rows) // 2
    texts = bytes(token for token in expansion.token_ids if token < 256).decode()
    assert texts == "00:00 <|image><image|> 01:05 <|image><image|>"
    assert [length for _, length in expansion.runs] == [count, count]


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_an_mmproj_file_gives_the_rows_of_the_folder(model: Any, kind: str, tmp_path: Path) -> None:
    folder, *_ = model
    sizes = {
        "image_size": 224,
        "patch_size": 4,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "block_count": 2,
        "attention.head_count": 2,
        "projection_dim": WIDTH,
    }
    conversion = Conversion("gemma4v", convert_gemma4)
    path = tmp_path / "mmproj.gguf"
    tensors = load_file(folder / "model.safetensors")
    file = GgufFile(export(path, conversion, sizes, tensors, kind, (0.0,) * 3, (1.0,) * 3))
    spec, own = gemma4.read_folder(folder), media_spec_of_mmproj(file)
    media = spec.processor.image(picture(64, 48))
    wanted = encode(spec, folder, media).rows
    close = {"f32": 1e-5, "f16": 2e-2}[kind] * np.abs(wanted).max()
    np.testing.assert_allclose(encode_with(own, file, media).rows, wanted, atol=close)
    expansion = own.processor.expand(media, lambda text: [len(text)])
    assert sum(count for _, count in expansion.runs) == len(wanted)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_those_of_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    write_config(tmp_path, TOWER, max_soft_tokens=140)
    media = gemma4.read_folder(tmp_path).processor.image(picture(*size))
    reference = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=140)
    given = reference(
        images=[picture(*size)], return_tensors="np", input_data_format="channels_last"
    )
    count = media.shape[0]
    np.testing.assert_allclose(media.array() / 255, given["pixel_values"][0, :count], atol=1e-6)
    assert count == 9 * given["num_soft_tokens_per_image"][0]


def test_an_image_is_placed_between_its_marks(tmp_path: Path) -> None:
    write_config(tmp_path, TOWER)
    processor = gemma4.read_folder(tmp_path).processor
    expansion = processor.expand(processor.image(picture(48, 48)), lambda text: [len(text)])
    assert expansion.token_ids == (8, *(258_880,) * 64, 8)
    assert expansion.runs == ((1, 64),)
    assert expansion.whole


def test_a_thin_image_gets_one_line_of_tokens(tmp_path: Path) -> None:
    write_config(tmp_path, TOWER)
    processor = gemma4.read_folder(tmp_path).processor
    assert TileLayout.of(processor.image(picture(3, 300))).grids == ((3, 210),)


def test_frames_start_equal_parts_of_a_video(tmp_path: Path) -> None:
    write_config(tmp_path, TOWER)
    times = gemma4.read_folder(tmp_path).processor.frame_times(64.0, 640)
    assert list(times) == pytest.approx([2.0 * index for index in range(32)])


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, embedder of transformers)."""
    config = Gemma4UnifiedVisionConfig(**UNIFIED)
    embedder = random_weights(
        Gemma4UnifiedVisionEmbedder(config, SimpleNamespace(hidden_size=WIDTH))
    )
    folder = tmp_path_factory.mktemp("unified")
    save(folder, model__embed_vision=embedder)
    write_config(folder, UNIFIED)
    return folder, embedder


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_rows_of_unified_equal_those_of_transformers(unified: Any, size: tuple[int, int]) -> None:
    folder, embedder = unified
    spec = gemma4_unified.read_folder(folder)
    media = spec.processor.image(picture(*size))
    ((rows, columns),) = TileLayout.of(media).grids
    places = torch.tensor([[x, y] for y in range(rows) for x in range(columns)])
    pixels = torch.tensor(media.array() / np.float32(255))
    wanted = embedder(pixels[None], places[None]).pooler_output[0].numpy()
    ours = encode(spec, folder, media).rows
    np.testing.assert_allclose(ours, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_an_mmproj_file_of_unified_gives_the_rows_of_the_folder(
    unified: Any, kind: str, tmp_path: Path
) -> None:
    folder, _ = unified
    conversion = Conversion("gemma4uv", convert_gemma4_unified)
    sizes = {"image_size": 224, "patch_size": 4, "embedding_length": 40, "projection_dim": WIDTH}
    tensors = load_file(folder / "model.safetensors")
    path = tmp_path / "mmproj.gguf"
    file = GgufFile(export(path, conversion, sizes, tensors, kind, (0.0,) * 3, (1.0,) * 3))
    spec, own = gemma4_unified.read_folder(folder), media_spec_of_mmproj(file)
    media = spec.processor.image(picture(64, 48))
    assert own.processor.image(picture(64, 48)).shape[1] == media.shape[1]  # whole tokens
    wanted = encode(spec, folder, media).rows
    close = {"f32": 1e-5, "f16": 2e-2}[kind] * np.abs(wanted).max()
    np.testing.assert_allclose(encode_with(own, file, media).rows, wanted, atol=close)
    expansion = own.processor.expand(media, lambda text: [len(text)])
    assert sum(count for _, count in expansion.runs) == len(wanted)


def test_rows_of_unified_do_not_depend_on_the_sizes_of_pieces(unified: Any) -> None:
    folder, _ = unified
    spec = gemma4_unified.read_folder(folder)
    check_pieces(spec, folder, spec.processor.image(picture(*SIZES[-1])))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"num_key_value_heads": 1}, "num_key_value_heads 1 is not supported"),
        ({"head_dim": 8}, "head_dim 8 is not supported"),
        ({"hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"num_hidden_layers": "x"}, "vision_config.*num_hidden_layers"),
    ],
)
def test_bad_keys_are_refused_by_name(keys: dict[str, Any], fault: str, tmp_path: Path) -> None:
    write_config(tmp_path, TOWER | keys)
    with pytest.raises(ModelError, match=fault):
        gemma4.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"max_soft_tokens": 71}, "max_soft_tokens 71"),
        ({"patch_size": 5}, "must be 4 and 3"),
        ({"do_normalize": True, "image_mean": [0.5, 0.5, 0.5]}, "do_normalize true"),
    ],
)
def test_bad_processor_keys_are_refused_by_name(
    keys: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    write_config(tmp_path, TOWER, **keys)
    with pytest.raises(ModelError, match=fault):
        gemma4.read_folder(tmp_path)
