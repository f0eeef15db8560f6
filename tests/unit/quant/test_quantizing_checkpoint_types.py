"""Matrices that are quantized to types of GGML while they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock import _native
from penstock.base.errors import ModelError
from penstock.config.weight_types import K_QUANTS, KNOWN, SMALL_BLOCKS, parse_weight_type
from penstock.quant.dequantize import dequantize
from penstock.quant.encode.encoder import encode
from penstock.quant.encode.fitting_type import fitting_type
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.quantizing_checkpoint import QuantizingCheckpoint
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.quant.weight_slices import size_bytes

NAMES = ["q4_0", "Q4K", "q4_k", "Q8_0", "q8-0", "int4", "INT8", "fp8", "8", "4", "q6k"]
NAMES += ["iq4nl", "none"]
MEANT = ["Q4_0", "Q4_K", "Q4_K", "Q8_0", "Q8_0", "int4", "int8", "fp8", "Q8_0", "Q4_K", "Q6_K"]
MEANT += ["IQ4_NL", "none"]


def checkpoint(folder: Path, columns: int, **more: Any) -> tuple[Any, np.ndarray]:
    random = np.random.default_rng(0)
    values = (0.05 * random.standard_normal((2, 24, columns))).astype(np.float16)
    save_file({"a": values[0], "stack": values}, folder / "model.safetensors")
    forms = dict.fromkeys(("a", "stack"), more.pop("form"))
    return QuantizingCheckpoint(SafetensorsFolder(folder), forms, **more), values


def test_names_have_the_spellings_that_people_know() -> None:
    assert [parse_weight_type(name) for name in NAMES] == MEANT
    assert [parse_weight_type(name) for name in KNOWN] == list(KNOWN)
    for unknown in ("q4", "Q8_1", "afq4", "", "int5", "q4_k_x"):
        assert parse_weight_type(unknown) is None


@pytest.mark.parametrize("form", (*SMALL_BLOCKS, *K_QUANTS))
def test_a_type_has_the_values_that_its_blocks_say(form: str, tmp_path: Path) -> None:
    read, values = checkpoint(tmp_path, 512, form=form, threads=2)
    kind = gguf.GGMLQuantizationType[form]
    error = np.abs(dequantize(read.matrix("a")) - values[0]).max()
    assert error < 0.12, "at most the step of 2 bits"
    if form in ("Q8_0", "Q4_0"):  # the only ones that the public package writes
        packed = gguf.quants.quantize(values[0].astype(np.float32), kind)
        public = np.abs(gguf.quants.dequantize(packed, kind) - values[0])
        own = np.abs(dequantize(read.matrix("a")) - values[0])
        assert (own**2).mean() <= 1.01 * (public**2).mean()
    one, other = read.stack("stack")
    assert np.array_equal(dequantize(one), dequantize(read.matrix("a")))
    assert not np.array_equal(dequantize(one), dequantize(other))


SMALL = {
    "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}  # fmt: skip
"""The types that llama.cpp gives to rows without blocks of 256."""


@pytest.mark.parametrize("form", K_QUANTS)
def test_columns_that_make_no_whole_blocks_get_the_type_of_llama_cpp(
    form: str, tmp_path: Path
) -> None:
    read, values = checkpoint(tmp_path, 96, form=form)
    wanted = TYPES[SMALL[form]]
    raw = encode(wanted.name, values[0].astype(np.float32), pool=_native.ThreadPool(1))
    expected = dequantize(wanted.convert(raw.reshape(-1), values[0].shape))
    assert np.array_equal(dequantize(read.matrix("a")), expected)
    assert size_bytes(read.layout_sample("a")) == size_bytes(wanted.layout_sample())
    assert fitting_type(form, 96) == wanted.name


def test_importance_lowers_the_error_of_important_columns(tmp_path: Path) -> None:
    weights = np.full(512, 1e-3, np.float32)
    weights[::16] = 1.0
    errors = []
    for importance in ({}, {"a": weights[None]}):
        read, values = checkpoint(tmp_path, 512, form="Q4_K", importance=importance)
        errors.append(((dequantize(read.matrix("a")) - values[0]) ** 2)[:, ::16].mean())
    assert errors[1] < 0.7 * errors[0]


def test_importance_of_other_columns_is_refused(tmp_path: Path) -> None:
    read, _ = checkpoint(tmp_path, 512, form="int4", importance={"a": np.ones((1, 64), np.float32)})
    with pytest.raises(ModelError, match="512 columns, the importance matrix 64"):
        read.matrix("a")
