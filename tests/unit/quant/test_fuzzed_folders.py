"""Quantized folders with wrong tensors, numbers and configurations are read with finite values or
refused with the name of the file; they never crash or take memory far beyond the file."""

from __future__ import annotations

import json
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.quant.checkpoint import extra_bytes, size_note
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from tests.support.checkpoints.packings import PACKINGS
from tests.support.checkpoints.quantized_folders import FORMATS, Tensors

ALL = FORMATS | PACKINGS
SHAPE = (64, 192)
MOST_BYTES = 32 << 20
FUZZED = settings(max_examples=120, deadline=None, derandomize=True, database=None)

_weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
_written: dict[str, Tensors] = {}


def tensors(name: str) -> Tensors:
    if name not in _written:
        parts, _ = ALL[name].write(_weight)
        _written[name] = {f"a.{last}": part.contiguous() for last, part in parts.items()}
    return dict(_written[name])


def save(folder: Path, config: dict[str, Any], held: Tensors) -> None:
    key = "quantization" if "mode" in config else "quantization_config"
    (folder / "config.json").write_text(json.dumps({key: config}))
    save_file(held, folder / "model.safetensors")


def read(folder: Path) -> str | None:
    """Read the matrix. Return how reading broke the contract, or None."""
    try:
        checkpoint = open_checkpoint(folder, "bf16")
        assert extra_bytes(checkpoint) >= 0 and isinstance(size_note(checkpoint, "gpu"), str)
        if "a.weight" not in checkpoint.tensors:
            return None  # the loader names the tensors that are left
        checkpoint.layout_sample("a.weight")
        matrix = checkpoint.matrix("a.weight")
    except ModelError as error:
        return None if str(folder) in str(error) else f"names no file: {error}"
    if matrix.shape != checkpoint.tensors["a.weight"].shape:
        return f"has shape {matrix.shape}"
    return None if np.isfinite(dequantize(matrix)).all() else "has infinite values"


def check(config: dict[str, Any], held: Tensors) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), config, held)
        assert read(Path(folder)) is None


SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 16, 24, 31, 32, 48, 64, 96, 192, 256])
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16]
TYPES = st.sampled_from([*INTEGERS, *NARROW, torch.float32, torch.float64])
NUMBERS = st.sampled_from([0.0, -0.0, -1.0, 1e-40, 65504.0, 3e38, np.inf, -np.inf, np.nan])


@FUZZED
@given(st.data())
def test_tensors_of_any_shape_and_type(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ALL)))
    held = tensors(name)
    for _ in range(data.draw(st.integers(1, 2))):
        last = data.draw(st.sampled_from(sorted(held)))
        shape = data.draw(st.lists(SIZES, max_size=4).filter(lambda one: np.prod(one) < 1 << 16))
        held[last] = torch.ones(shape).to(data.draw(TYPES))
    check(ALL[name].config, held)


@FUZZED
@given(st.data())
def test_tensors_that_are_cut_or_missing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ALL)))
    held = tensors(name)
    last = data.draw(st.sampled_from(sorted(held)))
    whole = held.pop(last)
    if data.draw(st.booleans()) and whole.ndim:
        axis = data.draw(st.integers(0, whole.ndim - 1))
        kept = data.draw(st.integers(0, whole.shape[axis]))
        held[last] = whole.narrow(axis, 0, kept).contiguous()
    check(ALL[name].config, held)


@FUZZED
@given(st.data())
def test_scales_of_any_number(data: st.DataObject) -> None:
    """Also negative ones, which are valid."""
    name = data.draw(st.sampled_from(sorted(ALL)))
    held = tensors(name)
    floats = [last for last, one in held.items() if one.is_floating_point()]
    if not floats:
        return
    last = data.draw(st.sampled_from(sorted(floats)))
    changed = held[last].clone().float().reshape(-1)
    places = data.draw(st.lists(st.integers(0, changed.numel() - 1), min_size=1, max_size=3))
    for place in places:
        changed[place] = data.draw(NUMBERS)
    held[last] = changed.reshape(held[last].shape).to(held[last].dtype)
    check(ALL[name].config, held)


@FUZZED
@given(st.data())
def test_bytes_of_any_value(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ALL)))
    held = tensors(name)
    last = data.draw(st.sampled_from(sorted(held)))
    changed = held[last].clone()
    flat = changed.reshape(-1).view(torch.uint8).numpy()
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    flat[:] = random.integers(0, 256, flat.size)
    held[last] = changed
    check(ALL[name].config, held)


LISTS = ("gptq act-order", "gptq 2 bits", "gptq 3 bits", "gptq of other bits by a rule")


@FUZZED
@given(st.sampled_from(LISTS), st.data())
def test_lists_of_groups_that_are_no_permutation(name: str, data: st.DataObject) -> None:
    held = tensors(name)
    numbers = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 7)
    places = data.draw(st.dictionaries(st.integers(0, 191), numbers, max_size=8))
    order = held["a.g_idx"].clone()
    if data.draw(st.booleans()):
        order[:] = data.draw(numbers)  # one group for all
    for place, number in places.items():
        order[place] = number
    wide = data.draw(st.booleans())
    check(ALL[name].config, held | {"a.g_idx": order.long() if wide else order})


WHOLE = [-(2**63), -2, -1, 0, 1, 2, 3, 5, 7, 9, 16, 31, 32, 33, 48, 64, 128, 2**31, 2**63 - 1]
VALUES = st.sampled_from([*WHOLE, None, True, "4", "", 0.5, [], [128], [0, 0], [128, 128], {}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values of a JSON object."""
    inner = value.items() if isinstance(value, dict) else []
    return [path, *(one for key, part in inner for one in places(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    return value | {path[0]: replaced(value[path[0]], path[1:], new)}


@FUZZED
@given(st.data())
def test_configurations_of_any_value(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(ALL)))
    config = ALL[name].config
    path = data.draw(st.sampled_from([one for one in places(config) if one]))
    check(replaced(config, path, data.draw(VALUES)), tensors(name))


HUGE = [2**62, 2**40, 2**32, 2**31, 2**20]


def write_header(folder: Path, entries: dict[str, tuple[str, list[int]]]) -> None:
    """Write a file whose tensors have the shapes, and data as far as a megabyte."""
    header, at = {}, 0
    for name, (kind, shape) in entries.items():
        size = int(np.prod([1, *shape], dtype=object))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(min(at, 1 << 20))
    (folder / "model.safetensors").write_bytes(data)


@FUZZED
@given(st.data())
def test_huge_shapes(data: st.DataObject) -> None:
    """Shapes whose products overflow, with no data or less than they need."""
    name = data.draw(st.sampled_from(sorted(ALL)))
    held = tensors(name)
    sizes = st.sampled_from([0, 1, 64, *HUGE])
    shapes = {last: data.draw(st.lists(sizes, max_size=3)) for last in held}
    kinds = {last: data.draw(st.sampled_from(["U8", "I8", "F8_E4M3"])) for last in held}
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), ALL[name].config, {})
        write_header(Path(folder), {last: (kinds[last], shapes[last]) for last in held})
        tracemalloc.start()
        try:
            fault = read(Path(folder))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert fault is None and most < MOST_BYTES


SMALL_TENSORS: list[tuple[str, str, torch.Tensor]] = [
    ("hqq 4 bits", "shape", torch.tensor([2**62, 2**62])),
    ("hqq 4 bits", "shape", torch.tensor([2**32, 2**32])),
    ("hqq in groups of rows", "shape", torch.tensor([2**31, 2**33])),
    ("hqq 4 bits", "group_size", torch.tensor(2**31 - 1, dtype=torch.int32)),
    ("hqq 4 bits", "group_size", torch.tensor(0, dtype=torch.int32)),
    ("hqq 4 bits", "nbits", torch.tensor(-(2**31), dtype=torch.int32)),
    ("packed 3 bits", "weight_shape", torch.tensor([2**62, 2**62])),
    ("packed 3 bits", "weight_shape", torch.tensor([64, 2**62])),
    ("packed 3 bits", "weight_shape", torch.tensor([64, 0])),
    ("packed 3 bits", "weight_shape", torch.tensor([64, -192])),
]


@pytest.mark.parametrize(("name", "last", "tensor"), SMALL_TENSORS)
def test_tensors_that_give_huge_sizes(
    tmp_path: Path, name: str, last: str, tensor: torch.Tensor
) -> None:
    save(tmp_path, ALL[name].config, tensors(name) | {f"a.{last}": tensor})
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"a\."):
            open_checkpoint(tmp_path, "bf16").matrix("a.weight")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MOST_BYTES


STATES: list[dict[str, Any]] = [
    {"shape": [2**40, 2**40]},
    {"shape": [64, -192]},
    {"shape": [12288]},
    {"shape": [64, 191]},
    {"blocksize": 0},
    {"blocksize": 1 << 16},
    {"blocksize": -64},
    {"dtype": "int8"},
    {"nested_blocksize": 0},
    {"nested_blocksize": 256},
    {"nested_blocksize": 1, "nested_offset": 0.5},
]


@pytest.mark.parametrize("change", STATES)
@pytest.mark.parametrize("name", ["nf4", "nf4 of float16, nested"])
def test_states_of_bitsandbytes(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    held = tensors(name)
    last = "a.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(held[last].numpy().tobytes()) | change
    text = json.dumps(state).encode()
    save(tmp_path, ALL[name].config, held | {last: torch.tensor(list(text), dtype=torch.uint8)})
    assert read(tmp_path) is None
