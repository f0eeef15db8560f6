"""Models whose stacks of experts are quantized give the logits of `transformers` with the
dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from gemma_models import build
from safetensors.torch import load_file, save_file
from test_decoder import PROMPT, TOLERANCE, expected_logits

from tests.support.checkpoints.quantized_folders import nvfp4_modelopt

Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, torch.Tensor]
"""The tensors of a stack by the end of their names, and its float32 values [E, C, N]."""


def fbgemm(name: str, stack: torch.Tensor) -> Written:
    scale = stack.abs().amax(1, keepdim=True) / 448
    codes = (stack / scale).to(torch.float8_e4m3fn)
    stored = scale if "gate_up" in name else scale.mT
    return {"": codes, "_scale": stored}, codes.float() * scale


def matrices(name: str, stack: torch.Tensor) -> Written:
    scale = stack.abs().amax((1, 2), keepdim=True) / 448
    codes = (stack / scale).to(torch.float8_e4m3fn)
    return {"": codes, "_scale_inv": scale}, codes.float() * scale


def nvfp4(name: str, stack: torch.Tensor) -> Written:
    each = [nvfp4_modelopt(one.T) for one in stack]
    parts = {last: torch.stack([one[0][last] for one in each]) for last in each[0][0]}
    parts |= {last: parts[last].mT for last in ("weight", "weight_scale")}
    return {"": parts.pop("weight")} | {f"_{last}": part for last, part in parts.items()}, (
        torch.stack([one[1].T for one in each])
    )


FORMS: dict[str, tuple[dict[str, Any], Callable[[str, torch.Tensor], Written]]] = {
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, fbgemm),
    "a scale per matrix": ({"quant_method": "fp8"}, matrices),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4),
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_transformers(form: str, tmp_path: Path) -> None:
    model = build("llama4", intermediate_size=96)  # 4-bit floats need groups of 32
    model.save_pretrained(tmp_path)
    config, write = FORMS[form]
    tensors: Tensors = {}
    meant: Tensors = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = meant[name] = tensor
            continue
        parts, meant[name] = write(name, tensor)
        tensors |= {name + ending: part.contiguous() for ending, part in parts.items()}
    assert len(tensors) > len(meant)
    save_file(tensors, tmp_path / "model.safetensors")
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(written | {"quantization_config": config}))
    model.load_state_dict(meant)
    expected = expected_logits(model, PROMPT)
    exact = Stepper(*load_decoder(tmp_path, "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(exact, expected, **TOLERANCE)
    fast = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    assert float((fast - expected).std() / expected.std()) < 0.1
