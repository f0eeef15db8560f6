"""The ops of a GPU and the torch settings of its process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.runtime.gpu.load import excluded_kernels, serving_ops

MATMUL = torch.backends.cuda.matmul


@pytest.fixture
def torch_default() -> Iterator[None]:
    before = MATMUL.allow_bf16_reduced_precision_reduction
    MATMUL.allow_bf16_reduced_precision_reduction = True
    yield
    MATMUL.allow_bf16_reduced_precision_reduction = before


@pytest.mark.usefixtures("torch_default")
@pytest.mark.parametrize("deterministic", [False, True])
def test_partial_products_are_added_in_float32(deterministic: bool) -> None:
    settings = EngineSettings(kernel_backend="triton", deterministic=deterministic)
    serving_ops(settings, "cpu", torch.bfloat16)
    assert not MATMUL.allow_bf16_reduced_precision_reduction


def test_kernels_are_excluded_by_name() -> None:
    asked = EngineSettings(disabled_kernels="packaged, decode_attention")
    assert sorted(excluded_kernels(asked)) == ["decode_attention", "packaged"]
    assert excluded_kernels(EngineSettings()) == {}


def test_an_unknown_kernel_name_is_refused() -> None:
    with pytest.raises(
        ModelError, match="'encode_attention' is not a kernel; it must be one of rms_norm, "
    ):
        excluded_kernels(EngineSettings(disabled_kernels="encode_attention"))
