"""What is set for a process whose GPU serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.config import EngineSettings
from penstock.runtime.gpu_load import serving_ops

MATMUL = torch.backends.cuda.matmul


@pytest.fixture
def as_torch_sets_it() -> Iterator[None]:
    before = MATMUL.allow_bf16_reduced_precision_reduction
    MATMUL.allow_bf16_reduced_precision_reduction = True
    yield
    MATMUL.allow_bf16_reduced_precision_reduction = before


@pytest.mark.usefixtures("as_torch_sets_it")
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_parts_of_a_product_are_added_in_float32(deterministic: bool) -> None:
    settings = EngineSettings(kernels="triton", deterministic=deterministic)
    serving_ops(settings, "cpu", torch.bfloat16)
    assert not MATMUL.allow_bf16_reduced_precision_reduction
