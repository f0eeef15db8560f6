"""An image tower whose weights are bfloat16 rounds the operands of its attention too, and stays
near the rows of the same weights in float32. Float16 weights that are bfloat16 numbers give the
same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from tests.support.vision_cases import CASES
from tests.support.vision_models import (
    drained,
    media_spec,
    native_ops,
    picture,
    save,
    small_model,
)


def rows_of(folder: Path, dtype: Any) -> np.ndarray[Any, Any]:
    spec = media_spec(folder)
    (tower,) = spec.towers
    ops = native_ops()
    built = tower.open(SafetensorsFolder(folder), dtype).build(ops)
    encoded, _ = drained(built.encode(ops, spec.processor.image(picture(70, 50)), PieceBudget()))
    return np.asarray(encoded.rows)


@pytest.mark.parametrize("name", ["internvl", "llava-onevision"])
def test_rows_of_a_rounded_tower_are_near_those_in_float32(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path / "bf16", model.to(torch.bfloat16), case.processor())
    exact, rounded = rows_of(folder, "f32"), rows_of(folder, "auto")
    assert (exact != rounded).any()
    error = np.linalg.norm(exact - rounded, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() < 0.05
    halves = save(tmp_path / "f16", model.to(torch.float16), case.processor())
    np.testing.assert_array_equal(rows_of(halves, "auto"), rounded)
