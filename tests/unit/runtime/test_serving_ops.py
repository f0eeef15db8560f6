"""What is set for a process whose GPU serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.runtime.gpu.load import kernels_without, serving_ops

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


def test_kernels_are_left_out_by_name() -> None:
    asked = EngineSettings(without_kernels="packaged, decode_attention")
    assert sorted(kernels_without(asked)) == ["decode_attention", "packaged"]
    assert kernels_without(EngineSettings()) == {}


def test_a_kernel_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModelError, match="'encode_attention' is none of rms_norm, "):
        kernels_without(EngineSettings(without_kernels="encode_attention"))
