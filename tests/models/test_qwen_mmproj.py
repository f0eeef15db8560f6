"""`mmproj` GGUF files of the Qwen-VL models give the embeddings of their folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmproj_export import TYPES, Conversion, convert_qwen2, convert_qwen3, export
from test_qwen_vl_towers import CASES, noise, write_config
from tower_runner import encode, encode_with, random_weights, save_tower

from penstock.base.errors import ModelError
from penstock.models.families.registry import media_spec_of_mmproj
from penstock.models.media.prepared import Frames
from penstock.quant.gguf.gguf_file import GgufFile

DEEP = [True, False, True]
CONVERSIONS = {
    "qwen2": Conversion("qwen2vl_merger", convert_qwen2),
    "qwen2.5": Conversion(
        "qwen2.5vl_merger",
        convert_qwen2,
        {"n_wa_pattern": 2, "window_size": 56},
        ("use_silu",),
    ),
    "qwen3": Conversion(
        "qwen3vl_merger",
        convert_qwen3((0, 2)),
        {"spatial_merge_size": 2, "is_deepstack_layers": DEEP},
        ("use_gelu",),
    ),
    "qwen3.5": Conversion(
        "qwen3vl_merger",
        convert_qwen3(()),
        {"spatial_merge_size": 2, "is_deepstack_layers": [False] * 3},
        ("use_gelu",),
    ),
}
CLOSE = {"f32": 1e-6, "f16": 3e-3, "bf16": 2e-2, "q8_0": 3e-2}


def sizes_of(case: str) -> dict[str, int]:
    keys = CASES[case][3]
    return {
        "image_size": 560,
        "patch_size": 16 if "qwen3" in case else 14,
        "embedding_length": 32,
        "feed_forward_length": keys.get("intermediate_size", 48),
        "block_count": 3,
        "attention.head_count": 2,
        "projection_dim": 48,
    }


@pytest.fixture(scope="module", params=CONVERSIONS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name of the case, folder, tensors of the tower)."""
    _, kind, config, keys = CASES[request.param]
    folder = tmp_path_factory.mktemp("model")
    reference = random_weights(kind(config(**keys)))
    save_tower(folder, reference, "model.visual.")
    write_config(folder, keys)
    return (
        request.param,
        folder,
        {name: tensor.numpy() for name, tensor in reference.state_dict().items()},
    )


@pytest.mark.parametrize("kind", TYPES)
def test_embeddings_equal_those_of_the_folder(model: Any, kind: str, tmp_path: Path) -> None:
    case, folder, tensors = model
    spec = CASES[case][0].FAMILY.media.read_folder(folder)
    mean, std = spec.towers[0].grid.mean, spec.towers[0].grid.std
    path = export(
        tmp_path / "mmproj.gguf", CONVERSIONS[case], sizes_of(case), tensors, kind, mean, std
    )
    file = GgufFile(path)
    own = media_spec_of_mmproj(file)
    image = spec.processor.image(noise(90, 210))
    ours, wanted = encode_with(own, file, image), encode(spec, folder, image)
    for mine, theirs in zip((ours.rows, *ours.deep), (wanted.rows, *wanted.deep), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=CLOSE[kind] * np.abs(theirs).max())


def test_both_kernels_of_the_patches_see_their_own_frame(model: Any, tmp_path: Path) -> None:
    case, folder, tensors = model
    spec = CASES[case][0].FAMILY.media.read_folder(folder)
    grid = spec.towers[0].grid
    path = export(tmp_path / "mmproj.gguf", CONVERSIONS[case], sizes_of(case), tensors,
                  mean=grid.mean, std=grid.std)  # fmt: skip
    video = spec.processor.video(Frames(noise(4, 80, 100), (0.0, 0.5, 1.0, 1.5), 2.0))
    file = GgufFile(path)
    ours = encode_with(media_spec_of_mmproj(file), file, video)
    wanted = encode(spec, folder, video)
    np.testing.assert_allclose(ours.rows, wanted.rows, atol=1e-6 * np.abs(wanted.rows).max())


def broken(path: Path, model: Any, keys: dict[str, Any], drop: str = "", **sizes: int) -> GgufFile:
    """Write a file with other keys and sizes, without the tensor `drop`."""
    case, _, tensors = model
    conversion = CONVERSIONS[case]
    kept = {name: tensor for name, tensor in tensors.items() if name != drop}
    changed = replace(conversion, keys={**conversion.keys, **keys})
    return GgufFile(export(path / "mmproj.gguf", changed, sizes_of(case) | sizes, kept))


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"embedding_length": 48}, "v.patch_embd.weight has shape"),
        ({"patch_size": 7}, "v.patch_embd.weight has shape"),
        ({"block_count": 4}, "tensor v.blk.3.* is missing"),
        ({"attention.head_count": 0}, "head_count is 0"),
        ({"attention.head_count": 3}, "32 over 3 heads"),
    ],
)
def test_broken_sizes_are_refused_by_name(
    model: Any, sizes: dict[str, int], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=fault):
        file = broken(tmp_path, model, {}, "", **sizes)
        media_spec_of_mmproj(file).towers[0].open(file, "f32")


def test_missing_tensors_are_named(model: Any, tmp_path: Path) -> None:
    dropped = next(name for name in model[2] if "merger." in name and name.endswith("bias"))
    with pytest.raises(ModelError, match=r"tensor (mm|v)\.\S+bias is missing"):
        file = broken(tmp_path, model, {}, dropped)
        media_spec_of_mmproj(file).towers[0].open(file, "f32")


def test_unknown_projector_is_refused_by_name(model: Any, tmp_path: Path) -> None:
    case, _, tensors = model
    conversion = replace(CONVERSIONS[case], projector="nonsense")
    path = export(tmp_path / "mmproj.gguf", conversion, sizes_of(case), tensors)
    with pytest.raises(ModelError, match="projector nonsense is not supported"):
        media_spec_of_mmproj(GgufFile(path))
