"""Weights that are rounded to 8-bit floats at the load take what the memory formula says."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from packed_weight_sizes import PackingOps, packed_layer, tensors_of

from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from tests.support.checkpoints.small_moe import expert_tensors, write_small_experts

pytest.importorskip("triton", reason="Triton has no build for this platform")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> DecoderWeights:
    folder = write_small_experts(tmp_path_factory.mktemp("mixture") / "m")
    return load_model(files_at(folder, "m"), "auto").weights


def held(weights: DecoderWeights, dense: Literal["stored", "float8"]) -> list[torch.Tensor]:
    """Of each layer what products read, and its vectors."""
    ops = PackingOps(dense)
    return tensors_of(*(tuple(packed_layer(layer, ops)) for layer in weights.layers()))


def test_they_save_on_a_device_what_was_counted(weights: DecoderWeights) -> None:
    stored, rounded = (
        sum(tensor.nbytes for tensor in held(weights, dense)) for dense in ("stored", "float8")
    )
    assert stored - rounded == weights.float8_savings(PackingOps().packed_bytes) > 0


def test_what_chooses_experts_stays(weights: DecoderWeights) -> None:
    floats = [one for one in held(weights, "float8") if one.dtype == torch.bfloat16]
    routers = [layer.router.shape for layer in weights.layers() if layer.router is not None]
    assert [tuple(one.shape) for one in floats] == routers


def test_each_row_of_an_expert_has_its_scale(weights: DecoderWeights) -> None:
    """The largest of a row is the largest code, and what codes mean is near what was stored."""
    experts = weights.layer(0).experts
    assert experts is not None
    ops = PackingOps("float8").pack_experts(experts)
    named = expert_tensors()
    for number in range(len(experts.gate)):
        at = f"model.layers.0.mlp.experts.{number}."
        gate, up, down = (named[f"{at}{name}_proj.weight"] for name in ("gate", "up", "down"))
        for stack, right in ((ops.gate_up[0], np.concatenate((gate, up))), (ops.down, down)):
            codes = stack.codes[number].view(torch.float8_e4m3fn).float()
            assert (codes.abs().amax(dim=1) == 448).all()
            meant = codes * stack.scale[number].T
            assert torch.allclose(meant, torch.from_numpy(right).float(), rtol=2**-3.9, atol=0.01)
