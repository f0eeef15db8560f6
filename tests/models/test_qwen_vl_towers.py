"""The vision towers of the Qwen-VL models give the embeddings of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tower_runner import check_pieces, encode, random_weights, save_tower
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from penstock.base.errors import ModelError
from penstock.models.families import qwen2_5_vl, qwen2_vl, qwen3_5, qwen3_vl, qwen3_vl_moe
from penstock.models.media.prepared import Frames, PreparedMedia

HEAD = {"depth": 3, "num_heads": 2}
QWEN2 = HEAD | {"embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
QWEN25 = HEAD | {
    "hidden_size": 32,
    "intermediate_size": 44,
    "out_hidden_size": 48,
    "fullatt_block_indexes": [1],
    "window_size": 56,
}
QWEN35 = HEAD | {
    "hidden_size": 32,
    "intermediate_size": 56,
    "out_hidden_size": 48,
    "num_position_embeddings": 36,
}
QWEN3 = QWEN35 | {"deepstack_visual_indexes": [0, 2]}
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "qwen2": (qwen2_vl, Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig, QWEN2),
    "qwen2.5": (
        qwen2_5_vl,
        Qwen2_5_VisionTransformerPretrainedModel,
        Qwen2_5_VLVisionConfig,
        QWEN25,
    ),
    "qwen3": (qwen3_vl, Qwen3VLVisionModel, Qwen3VLVisionConfig, QWEN3),
    "qwen3-moe": (qwen3_vl_moe, Qwen3VLVisionModel, Qwen3VLVisionConfig, QWEN3),
    "qwen3.5": (qwen3_5, Qwen3_5VisionModel, Qwen3_5VisionConfig, QWEN35),
}
SIZES = {
    "preprocessor_config": {"size": {"shortest_edge": 784, "longest_edge": 200_000}},
    "video_preprocessor_config": {"size": {"shortest_edge": 784, "longest_edge": 150_000}},
}


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(family, model of transformers, folder with its weights)."""
    family, kind, config, keys = CASES[request.param]
    folder = tmp_path_factory.mktemp("model")
    reference = random_weights(kind(config(**keys)))
    save_tower(folder, reference, "model.visual.")
    write_config(folder, keys)
    return family, reference, folder


def write_config(folder: Path, keys: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"vision_config": keys}))
    for name, sizes in SIZES.items():
        (folder / f"{name}.json").write_text(json.dumps(sizes))


def merged_patches(frames: np.ndarray, patch: int, merge: int, frames_per_patch: int) -> np.ndarray:
    """Return the patches of frames as transformers' processors order them."""
    if len(frames) < frames_per_patch:
        frames = np.repeat(frames, frames_per_patch, axis=0)
    count, height, width, _ = frames.shape
    tall, wide = height // (merge * patch), width // (merge * patch)
    cut = frames.reshape(
        count // frames_per_patch, frames_per_patch, tall, merge, patch, wide, merge, patch, 3
    )
    return cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3 * frames_per_patch * patch**2)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), np.uint8)


def expected(reference: Any, grid: Any, media: PreparedMedia) -> list[np.ndarray]:
    """Return the embeddings and those of DeepStack that transformers computes."""
    sides = (grid.patch, grid.merge, grid.frames_per_patch)
    patches = merged_patches(media.array(), *sides).reshape(-1, 3, 2 * grid.patch**2) / 255.0
    mean, std = np.array(grid.mean)[:, None], np.array(grid.std)[:, None]
    pixels = torch.tensor(((patches - mean) / std).reshape(len(patches), -1), dtype=torch.float32)
    with torch.no_grad():
        result = reference(pixels, torch.tensor([media.layout[:3]]))
    deep = getattr(result, "deepstack_features", None) or []
    return [tensor.numpy() for tensor in (result.pooler_output, *deep)]


@pytest.mark.parametrize("size", [(28, 28), (90, 210), (333, 217), (400, 64)])
def test_embeddings_of_images_equal_those_of_transformers(model: Any, size: Any) -> None:
    family, reference, folder = model
    spec = family.FAMILY.media.read_folder(folder)
    media = spec.processor.image(noise(*size))
    encoded = encode(spec, folder, media)
    wanted = expected(reference, spec.towers[0].grid, media)
    for ours, theirs in zip((encoded.rows, *encoded.deep), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_embeddings_do_not_depend_on_the_sizes_of_pieces(model: Any) -> None:
    family, _, folder = model
    spec = family.FAMILY.media.read_folder(folder)
    frames = Frames(noise(4, 96, 128), (0, 0.5, 1, 1.5), 2.0)
    check_pieces(spec, folder, spec.processor.video(frames))


def test_embeddings_of_videos_equal_those_of_transformers(model: Any) -> None:
    family, reference, folder = model
    spec = family.FAMILY.media.read_folder(folder)
    frames = Frames(noise(5, 100, 140), tuple(index / 2 for index in range(5)), 2.5)
    media = spec.processor.video(frames)
    encoded = encode(spec, folder, media)
    wanted = expected(reference, spec.towers[0].grid, media)
    for ours, theirs in zip((encoded.rows, *encoded.deep), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_a_frame_of_a_video_has_the_embeddings_of_the_frame_alone(model: Any) -> None:
    family, _, folder = model
    spec = family.FAMILY.media.read_folder(folder)
    pixels = noise(4, 96, 128)
    both = spec.processor.pixels.prepare_video(Frames(pixels, (0, 1, 2, 3), 4.0))
    height, width = both.shape[1:3]
    groups = PreparedMedia.of("video", both.array()[2:], (1, *both.layout[1:3]))
    assert (height, width) == groups.shape[1:3]
    rows = encode(spec, folder, both).rows
    alone = encode(spec, folder, groups).rows
    assert np.array_equal(rows[len(rows) // 2 :], alone)


def test_missing_tensor_is_named(model: Any, tmp_path: Path) -> None:
    family, reference, folder = model
    spec = family.FAMILY.media.read_folder(folder)
    tensors = {f"visual.{name}": value.contiguous()
               for name, value in reference.state_dict().items()}  # fmt: skip
    removed = next(name for name in tensors if "merger" in name and name.endswith("weight"))
    del tensors[removed]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=removed):
        encode(spec, tmp_path, spec.processor.image(noise(28, 28)))


@pytest.mark.parametrize(
    ("case", "keys", "fault"),
    [
        ("qwen2", {"patch_size": 0}, "vision_config: patch_size is 0"),
        ("qwen2", {"depth": "x"}, "vision_config.*depth"),
        ("qwen2", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("qwen2", {"in_channels": 4}, "in_channels is 4"),
        ("qwen2.5", {"window_size": 20}, "window_size 20"),
        ("qwen2.5", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("qwen3", {"num_position_embeddings": 35}, "num_position_embeddings 35"),
        ("qwen3", {"deepstack_visual_indexes": [9]}, "layers .9,. are not in 0..2"),
        ("qwen3", {"deepstack_visual_indexes": [2, 0]}, "do not ascend"),
    ],
)
def test_bad_keys_are_refused_by_name(
    case: str, keys: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    family, _, _, known = CASES[case]
    write_config(tmp_path, known | keys)
    with pytest.raises(ModelError, match=fault):
        family.FAMILY.media.read_folder(tmp_path)
