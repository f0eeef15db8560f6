"""The kernel that multiplies experts in 8-bit floats follows from the rows per expert."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.triton import linear_choice
from penstock.kernels.triton.compile.launch import Launch, record_launches
from penstock.kernels.triton.moe import experts_float8
from penstock.kernels.triton.moe.experts import experts
from penstock.kernels.triton.moe.packed_experts import Float8Stack, PackedExperts

COUNT, PER_TOKEN = 4, 2
PRODUCTS = {"widen_experts_kernel", "experts_float8_kernel"}


def stack(rows: int, width: int) -> Float8Stack:
    codes = torch.empty(COUNT, rows, width, dtype=torch.uint8)
    return Float8Stack(codes, torch.empty(COUNT, 1, rows), 1, grouped=False)


def launched(tokens: int, ff: int = 256, *, invariant: bool = False) -> list[Launch]:
    """Return the kernels that a step launches for both products."""
    x = torch.empty(tokens, 128, dtype=torch.bfloat16)
    chosen = torch.zeros(tokens, PER_TOKEN, dtype=torch.int32)
    weights = PackedExperts((stack(2 * ff, 128),), stack(128, ff), invariant)
    with record_launches() as launches:
        experts(x, chosen, torch.empty(tokens, PER_TOKEN), weights)
    return [one for one in launches if one.kernel.fn.__name__ in PRODUCTS]


def kernels(*arguments: int, invariant: bool = False) -> list[str]:
    return [one.kernel.fn.__name__ for one in launched(*arguments, invariant=invariant)]


def test_few_rows_are_widened_and_many_go_to_8_bit_tensor_cores() -> None:
    most = 16 * COUNT // PER_TOKEN
    assert kernels(1) == kernels(most) == ["widen_experts_kernel"] * 2
    assert kernels(most + 1) == kernels(2048) == ["experts_float8_kernel"] * 2


def test_widths_of_no_whole_groups_are_always_widened() -> None:
    assert kernels(2048, 200) == ["experts_float8_kernel", "widen_experts_kernel"]


def test_deterministic_products_are_one_kernel_with_one_tile() -> None:
    signatures = [
        {launch.signature() for launch in launched(tokens, invariant=True)}
        for tokens in (1, 40, 2048)
    ]
    assert {one.kernel for one in signatures[0]} == {"experts_float8_kernel"}
    assert signatures[0] == signatures[1] == signatures[2]


def test_a_gpu_without_8_bit_tensor_cores_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_float8, "float8_capability", lambda device: 80)
    for invariant in (False, True):
        assert kernels(2048, invariant=invariant) == ["widen_experts_kernel"] * 2


def test_measured_table_of_experts_selects_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"90-float8-experts": {"512x128": [[300, "widen"]]}}
    monkeypatch.setattr(linear_choice, "_measured", lambda key: tables.get(key, {}))
    assert kernels(512) == ["widen_experts_kernel", "experts_float8_kernel"]
