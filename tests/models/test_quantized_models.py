"""Models in every quantization format give the logits of `transformers` with the dequantized
weights in float32 mode, and nearly so with the arithmetic of a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from safetensors.torch import save_file
from test_decoder import PROMPT, TOLERANCE, expected_logits
from test_moe_models import random_model

from tests.support.checkpoints.quantized_folders import FORMATS, write_folder

NAMES = [name for name in FORMATS if name != "packed 1 bits"]  # its logits are nearly all zero


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = random_model("Llama", {"intermediate_size": 192})
    folder = tmp_path_factory.mktemp("formats") / "plain"
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers_with_dequantized_weights(
    plain: tuple[Path, Any], tmp_path: Path, name: str
) -> None:
    folder, model = plain
    meant = write_folder(folder, tmp_path / "m", FORMATS[name])
    (tmp_path / "meant").mkdir()
    save_file(meant, tmp_path / "meant" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "meant" / "config.json").write_text((folder / "config.json").read_text())
    same = type(model).from_pretrained(tmp_path / "meant", dtype=torch.float32)
    expected = expected_logits(same, PROMPT)
    exact = Stepper(*load_decoder(tmp_path / "m", "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(exact, expected, **TOLERANCE)
    fast = Stepper(*load_decoder(tmp_path / "m")).step({0: PROMPT}, all_rows=True)
    # the error of 8-bit activations; a misplaced weight would give an error of 1
    assert float((fast - expected).std() / expected.std()) < 0.1
