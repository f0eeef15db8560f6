"""An image tower whose weights are bfloat16 rounds the operands of its attention too, and stays
near the rows of the same weights in float32. Float16 weights that are bfloat16 numbers give the
same rows. Other float16 weights keep the precision of float16."""

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


def multiplies_in_bf16() -> bool:
    """Return whether this processor's kernels round the operands of bfloat16 weights to
    bfloat16. Others multiply them in float32."""
    isa = native_ops().isa
    return "bf16" in isa or "amx" in isa


def error_of(rows: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> float:
    """Return the largest error of a row, relative to the row."""
    error = np.linalg.norm(exact - rows, axis=1) / np.linalg.norm(exact, axis=1)
    return float(error.max())


@pytest.mark.parametrize("name", ["internvl", "llava-onevision"])
def test_rows_of_a_rounded_tower_are_near_those_in_float32(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path / "bf16", model.to(torch.bfloat16), case.processor())
    exact, rounded = rows_of(folder, "f32"), rows_of(folder, "auto")
    assert (exact != rounded).any()
    assert error_of(rounded, exact) < 0.05
    halves = save(tmp_path / "f16", model.to(torch.float16), case.processor())
    if multiplies_in_bf16():
        np.testing.assert_array_equal(rows_of(halves, "auto"), rounded)
    else:
        np.testing.assert_allclose(rows_of(halves, "auto"), rounded, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["internvl", "llava-onevision"])
def test_rows_of_a_float16_tower_are_nearer_to_float32_than_in_bfloat16(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path / "f16", model.to(torch.float16), case.processor())
    error = error_of(rows_of(folder, "auto"), rows_of(folder, "f32"))
    coarse = save(tmp_path / "bf16", model.to(torch.bfloat16), case.processor())
    coarse_error = error_of(rows_of(coarse, "auto"), rows_of(coarse, "f32"))
    assert 0 < error < (coarse_error / 2 if multiplies_in_bf16() else 1e-3)
