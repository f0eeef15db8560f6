"""Image towers give the rows of `transformers` for images of any size, alone and in any pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tower_runner import check_pieces

from penstock.base.errors import ModelError
from penstock.kernels.reference import ReferenceOps
from penstock.models.media.prepared import Frames
from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from tests.support.vision_cases import CASES, Case
from tests.support.vision_models import (
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

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


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


@pytest.mark.parametrize(
    "name", ["llava-onevision", "smolvlm, positions of a larger image", "internvl"]
)
@torch.no_grad()
def test_rows_of_videos_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path, model, case.processor())
    spec = media_spec(folder)
    pixels = np.stack([picture(37, 60, seed) for seed in range(3)])
    media = spec.processor.video(Frames(pixels, (0.0, 1.0, 2.0), 3.0))
    tiles = torch.from_numpy(np.stack(normalized_tiles(spec, media)))
    if name == "llava-onevision":
        features = model.get_video_features(pixel_values_videos=tiles[None])
    elif name == "internvl":
        features = model.get_image_features(pixel_values=tiles)
    else:
        features = model.get_image_features(pixel_values=tiles[None])
    expected = joined(features.pooler_output)
    rows = encoded(folder, media)
    np.testing.assert_allclose(rows, expected, **TOLERANCE)
    expansion = spec.processor.expand(media, lambda text: [len(text)])
    assert sum(count for _, count in expansion.runs) == len(rows)


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
    first = [drained(tower.encode(ops, item, PieceBudget()))[0].rows for item in media]
    again = [drained(tower.encode(ops, item, PieceBudget()))[0].rows for item in reversed(media)]
    for one, other in zip(first, reversed(again), strict=True):
        np.testing.assert_array_equal(one, other)
    interleaved = [tower.encode(ops, item, PieceBudget()) for item in media[2:4]]
    for pieces in interleaved:
        next(pieces)
    for pieces, alone in zip(interleaved, first[2:4], strict=True):
        np.testing.assert_array_equal(drained(pieces)[0].rows, alone)


def test_rows_do_not_depend_on_the_sizes_of_pieces(saved: Any) -> None:
    folder, *_ = saved
    spec = media_spec(folder)
    check_pieces(spec, folder, spec.processor.image(picture(*SIZES[3])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llava", "internvl", "gemma3"])
def test_towers_with_rounded_weights(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case = CASES[name]
    model, images = small_model(case.name, case.text, case.vision, case.whole), case.processor()
    folder = save(tmp_path, model.to(dtype), images)
    pixels = picture(37, 91)
    expected = expected_rows(model.float(), images, case, pixels)
    media = media_spec(folder).processor.image(pixels)
    (spec,) = media_spec(folder).towers
    ops, checkpoint = native_ops(), SafetensorsFolder(folder)
    exact, fast = (
        drained(spec.open(checkpoint, kind).build(ops).encode(ops, media, PieceBudget()))[0].rows
        for kind in ("f32", "auto")
    )
    np.testing.assert_allclose(exact, expected, **TOLERANCE)
    assert np.abs(fast - expected).max() < 0.03 * np.abs(expected).max()


def test_the_reference_ops_give_the_rows_of_the_native_ones(saved: Any) -> None:
    folder, *_ = saved
    (spec,) = media_spec(folder).towers
    ops = ReferenceOps()
    tower = spec.open(SafetensorsFolder(folder), "auto").build(ops)
    media = media_spec(folder).processor.image(picture(37, 91))
    rows = drained(tower.encode(ops, media, PieceBudget()))[0].rows
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
