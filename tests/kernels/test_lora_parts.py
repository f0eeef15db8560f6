"""Rows of a large step have the bits of the same rows in a small one, whose parts of a sum have
programs of their own. On a GPU in the types that it serves; without one, interpreted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.kernels.lora_slots import LoraFactors, SlotSizes
from penstock.kernels.ops.lora import group_rows
from penstock.kernels.step_inputs import AdapterRows
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.triton import lora as kernels

ON_GPU = not INTERPRETED and torch.cuda.is_available()
DEVICE, DTYPE, ERROR = ("cuda", torch.bfloat16, 2e-2) if ON_GPU else ("cpu", torch.float32, 1e-5)
FUSED_PROJECTIONS, RANK, TOKENS = (48, 32), 20, 37


def random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).standard_normal(shape, dtype=np.float32))


def added(x: torch.Tensor, factors: tuple[LoraFactors, ...]) -> torch.Tensor:
    """Return the result of an adapter with these factors on rows of zeros."""
    slots = kernels.TritonSlots(
        SlotSizes(1, RANK, ((x.shape[1], FUSED_PROJECTIONS),), "f16"), DEVICE
    )
    slots.install(0, slots.pack((factors,)))
    rows = group_rows((0,) * len(x), 1)
    there = AdapterRows(*(part.to(DEVICE) for part in (rows.slots, rows.order, rows.starts)))
    return kernels.lora(x, x.new_zeros(len(x), sum(FUSED_PROJECTIONS)), slots, 0, there)


@pytest.mark.skipif(not (INTERPRETED or ON_GPU), reason="needs the interpreter or a GPU")
@pytest.mark.parametrize("width", [24, 1024, 2200])
def test_rows_of_a_large_step_have_the_bits_of_a_small_one(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random(TOKENS, width).to(DTYPE)
    pairs = [(random(RANK, width).half(), random(rows, RANK).half()) for rows in FUSED_PROJECTIONS]
    factors = tuple(LoraFactors(a.float().numpy(), b.float().numpy()) for a, b in pairs)
    small = added(x.to(DEVICE), factors)
    monkeypatch.setattr(kernels, "_FEW_ROWS", TOKENS - 1)
    assert torch.equal(added(x.to(DEVICE), factors), small)
    truth = torch.cat([x.double() @ a.double().T @ b.double().T for a, b in pairs], dim=1)
    assert (small.cpu().double() - truth).abs().max() < ERROR * truth.abs().max()


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED or ON_GPU, reason="it is what this test starts")
def test_rows_of_a_large_step_have_the_bits_of_a_small_one_interpreted() -> None:
    passes_interpreted(__file__)
