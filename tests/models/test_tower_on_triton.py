"""Image towers over Triton's ops, in the interpreter, give the rows of the native ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted
from tests.support.vision_cases import CASES
from tests.support.vision_models import (
    drained,
    media_spec,
    native_ops,
    picture,
    save,
    small_model,
)


@pytest.mark.skipif(not INTERPRETED, reason="the other test of this file starts it")
@pytest.mark.parametrize("name", ["internvl", "gemma3", "llava with pixtral"])
def test_rows_are_those_of_the_native_ops(name: str, tmp_path: Path) -> None:
    from penstock.kernels.triton import TritonOps

    case = CASES[name]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path, model, case.processor())
    spec = media_spec(folder)
    (tower,) = spec.towers
    media = spec.processor.image(picture(37, 45))
    rows = []
    for ops in (native_ops(), TritonOps("cpu", torch.float32)):
        built = tower.open(SafetensorsFolder(folder), "f32").build(ops)
        with torch.inference_mode():
            rows.append(np.asarray(drained(built.encode(ops, media, PieceBudget()))[0].rows))
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_towers_run_in_the_interpreter() -> None:
    passes_interpreted(__file__)
