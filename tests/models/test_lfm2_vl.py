"""The tower of LFM2-VL gives the rows of `transformers`, and its processor cuts images as its
documentation says. transformers' own processor needs torchvision, so sizes are stated here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.models.media.tiles import TileLayout
from penstock.quant.json_file import read_json
from tests.support.vision_models import TEXT, VISION, encoded, media_spec, picture, randomized

LAYERS = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
PROCESSOR = {
    "encoder_patch_size": 7,
    "tile_size": 28,
    "min_image_tokens": 4,
    "max_image_tokens": 16,
    "max_tiles": 6,
}
# (height, width) of an image -> rows and columns of its tiles, and the grids of their patches.
GRIDS = {
    (1, 1): ((1, 1), [(4, 4)]),
    (37, 40): ((1, 1), [(6, 6)]),
    (64, 48): ((1, 1), [(10, 6)]),
    (90, 130): ((2, 3), [(4, 4)] * 6 + [(6, 8)]),
    (20, 500): ((1, 6), [(4, 4)] * 6 + [(2, 40)]),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(folder, model)."""
    vision = VISION | {"model_type": "siglip2_vision_model", "num_patches": 16}
    del vision["image_size"]
    config = transformers.Lfm2VlConfig(
        text_config=TEXT | {"model_type": "lfm2"} | LAYERS,
        vision_config=vision | {"vision_use_head": False},
        image_token_id=63,
        projector_hidden_size=40,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = randomized(transformers.Lfm2VlForConditionalGeneration(config))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(str(PROCESSOR).replace("'", '"'))
    assert read_json(folder / "preprocessor_config.json", dict[str, Any]) == PROCESSOR
    return folder, model


@pytest.mark.parametrize("size", GRIDS, ids=str)
@torch.no_grad()
def test_rows_are_those_of_transformers(saved: Any, size: tuple[int, int]) -> None:
    folder, model = saved
    spec = media_spec(folder)
    media = spec.processor.image(picture(*size))
    grids = TileLayout.of(media).grids
    (tower,) = spec.towers
    patches = tower.normalization.apply(media.array())  # type: ignore[attr-defined]
    most = max(rows * columns for rows, columns in grids)
    pixels = torch.zeros(len(grids), most, patches.shape[1])
    mask = torch.zeros(len(grids), most, dtype=torch.long)
    start = 0
    for number, (rows, columns) in enumerate(grids):
        count = rows * columns
        pixels[number, :count] = torch.from_numpy(patches[start : start + count])
        mask[number, :count] = 1
        start += count
    features = model.get_image_features(
        pixel_values=pixels, spatial_shapes=torch.tensor(grids), pixel_attention_mask=mask
    )
    expected = torch.cat(list(features.pooler_output)).numpy()
    np.testing.assert_allclose(encoded(folder, media), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", GRIDS, ids=str)
def test_images_of_many_pixels_are_cut(saved: Any, size: tuple[int, int]) -> None:
    processor = media_spec(saved[0]).processor
    layout = TileLayout.of(processor.image(picture(*size)))
    shape, grids = GRIDS[size]
    assert layout.extra == shape
    assert list(layout.grids) == grids


def test_tiles_are_named_by_row_and_column(saved: Any) -> None:
    processor = media_spec(saved[0]).processor
    texts: list[str] = []

    def encode(text: str) -> list[int]:
        texts.append(text)
        return [1]

    made = processor.expand(processor.image(picture(90, 130)), encode)
    cells = [f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in (1, 2, 3)]
    assert texts == [f"<|image_start|>{cells[0]}", *cells[1:], "<|img_thumbnail|>", "<|image_end|>"]
    assert [count for _, count in made.runs] == [4] * 6 + [12]
