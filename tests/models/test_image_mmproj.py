"""`mmproj` GGUF files of models over tiles of images give the pixels, tokens and rows of their
folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmproj_export import (
    INTERNVL_NAMES,
    LLAVA_NAMES,
    PROJECTOR_NAMES,
    Conversion,
    convert_images,
    export,
    interleaved,
    swapped_feed_forward,
)
from safetensors.numpy import load_file
from tower_runner import encode_with

from penstock.base.errors import ModelError
from penstock.models.families.registry import media_spec_of_mmproj
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from tests.support.vision_cases import CASES, PINPOINTS
from tests.support.vision_models import media_spec, picture, save, small_model

LLAVA = Conversion(  # its converter leaves the last layer and the norm after it out
    "mlp", convert_images(LLAVA_NAMES, "v.blk.2."), {"block_count": 2}, eps=1e-5
)
PIXTRAL = Conversion("pixtral", interleaved(convert_images(PROJECTOR_NAMES), 2), {"image_size": 70},
                     ("use_silu",), 1e-5)  # fmt: skip
NEWLINE = {"image_newline": "model.image_newline"}
CONVERSIONS: dict[str, Conversion] = {
    "llava": replace(LLAVA, convert=convert_images(LLAVA_NAMES, "v.post_ln")),
    "llava-next": replace(
        LLAVA,
        convert=convert_images(LLAVA_NAMES | NEWLINE, "v.post_ln"),
        keys={
            "block_count": 2,
            "mm_patch_merge_type": "spatial_unpad",
            "image_grid_pinpoints": [edge for high, wide in PINPOINTS for edge in (wide, high)],
        },
    ),
    "gemma3": Conversion(
        "gemma3", convert_images(PROJECTOR_NAMES), {"projector.scale_factor": 2}, ("use_gelu",)
    ),
    "idefics3": Conversion(
        "idefics3",
        convert_images(PROJECTOR_NAMES),
        {"projector.scale_factor": 2, "preproc_image_size": 84},
        ("use_gelu",),
    ),
    "internvl": Conversion(
        "internvl",
        convert_images(INTERNVL_NAMES),
        {"projector.scale_factor": 2, "preproc_min_tiles": 1, "preproc_max_tiles": 6},
        ("use_gelu",),
    ),
    "llava with pixtral": PIXTRAL,
    "mistral3": replace(PIXTRAL, keys={"image_size": 70, "spatial_merge_size": 2}),
}
VISION = {
    "image_size": 28,
    "patch_size": 7,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "block_count": 3,
    "attention.head_count": 2,
    "projection_dim": 64,
}
TOLERANCE = {"f32": 1e-5, "f16": 2e-2, "q8_0": 1e-1}


@pytest.fixture(scope="module", params=CONVERSIONS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(conversion, media side of the folder, the folder)."""
    case = CASES[request.param]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path_factory.mktemp("model"), model, case.processor())
    return CONVERSIONS[request.param], media_spec(folder), folder


def written(model: Any, path: Path, kind: str = "f32") -> GgufFile:
    conversion, spec, folder = model
    normalization = spec.towers[0].normalization
    tensors = load_file(folder / "model.safetensors")
    mean, std = normalization.mean, normalization.std
    return GgufFile(export(path / "mmproj.gguf", conversion, VISION, tensors, kind, mean, std))


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("size", [(37, 91), (64, 48), (28, 28)])
def test_rows_equal_those_of_the_folder(
    model: Any, size: tuple[int, int], kind: str, tmp_path: Path
) -> None:
    _, spec, folder = model
    file = written(model, tmp_path, kind)
    media = spec.processor.image(picture(*size))
    ours = encode_with(media_spec_of_mmproj(file), file, media).rows
    wanted = encode_with(spec, SafetensorsFolder(folder), media).rows
    np.testing.assert_allclose(ours, wanted, atol=TOLERANCE[kind] * np.abs(wanted).max())


@pytest.mark.parametrize("size", [(37, 91), (64, 48), (150, 10)])
def test_pixels_and_tokens_equal_those_of_the_folder(
    model: Any, size: tuple[int, int], tmp_path: Path
) -> None:
    _, spec, _ = model
    processor = media_spec_of_mmproj(written(model, tmp_path)).processor
    ours, wanted = (each.image(picture(*size)) for each in (processor, spec.processor))
    assert (ours.shape, ours.layout) == (wanted.shape, wanted.layout)
    np.testing.assert_array_equal(ours.array(), wanted.array())
    encode = lambda text: list(text.encode())  # noqa: E731
    own, folder = processor.expand(ours, encode), spec.processor.expand(wanted, encode)
    assert (own.runs, own.whole) == (folder.runs, folder.whole)
    assert processor.placeholders["image"] == spec.processor.placeholders["image"]


def test_the_old_names_of_the_feed_forward_are_read(model: Any, tmp_path: Path) -> None:
    conversion, spec, folder = model
    if conversion.projector == "pixtral":
        pytest.skip("a gated feed-forward is newer than the change of names")
    old = replace(conversion, convert=swapped_feed_forward(conversion.convert))
    file = written((old, spec, folder), tmp_path)
    media = spec.processor.image(picture(40, 40))
    ours = encode_with(media_spec_of_mmproj(file), file, media).rows
    wanted = encode_with(spec, SafetensorsFolder(folder), media).rows
    np.testing.assert_allclose(ours, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"patch_size": 14}, r"v\.patch_embd\.weight has shape"),
        ({"block_count": 9}, r"v\.blk\.\d\.\S+ is missing"),
        ({"attention.head_count": 5}, "over 5 heads"),
        ({"attention.head_count": "two"}, "head_count: expected an integer"),
        ({"image_mean": [0.5]}, "image_mean"),
    ],
)
def test_broken_files_are_refused_by_name(
    model: Any, keys: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    conversion, spec, folder = model
    broken = replace(conversion, keys={**conversion.keys, **keys})
    with pytest.raises(ModelError, match=fault):
        file = written((broken, spec, folder), tmp_path)
        media_spec_of_mmproj(file).towers[0].open(file, "auto")


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"mm_patch_merge_type": "spatial"}, "mm_patch_merge_type spatial is not supported"),
        ({"image_grid_pinpoints": [28, 56, 28]}, "image_grid_pinpoints must be pairs"),
        ({"image_grid_pinpoints": [28, 30]}, "image_grid_pinpoints must be multiples of 28"),
    ],
)
def test_canvases_that_do_not_fit_are_refused(
    keys: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    conversion = CONVERSIONS["llava-next"]
    broken = replace(conversion, keys={**conversion.keys, **keys})
    tensors = {"model.vision_tower.encoder.layers.0.mlp.fc1.weight": np.ones((48, 32))}
    tensors["model.vision_tower.embeddings.position_embedding.weight"] = np.ones((17, 32))
    file = GgufFile(export(tmp_path / "m.gguf", broken, VISION, tensors))
    with pytest.raises(ModelError, match=fault):
        media_spec_of_mmproj(file)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"general\.architecture is llama"):
        media_spec_of_mmproj(GgufFile(tmp_path / "m.gguf"))
