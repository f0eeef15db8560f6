"""The safetensors reader returns the contents of valid files, and raises ModelError for invalid
ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from penstock.base.errors import ModelError
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.safetensors_file import SafetensorsFile, SafetensorsFolder


def container(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: Any = (2,), begin: int = 0, end: int = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_tensors_read_back(tmp_path: Path, dtype: torch.dtype) -> None:
    matrix, vector = torch.randn(3, 5).to(dtype), torch.randn(7).to(dtype)
    save_file({"m": matrix, "v": vector}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(dequantize(file.matrix("m")), matrix.float().numpy())
    np.testing.assert_array_equal(file.vector("v"), vector.float().numpy())


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 2)}, tmp_path / "s1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "s2.safetensors")
    index = {"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = SafetensorsFolder(tmp_path)
    assert set(folder.tensors) == {"a", "b"}
    assert dequantize(folder.matrix("a")).sum() == 4
    assert folder.vector("b").tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "", "x.bin", "..", "a\0b"],
)
def test_a_shard_outside_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    index = {"weight_map": {"a": shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="must be the name of a file in the same folder"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "s.safetensors", "c": "s.safetensors"}, "tensor c is not in s.safetensors"),
        ({"a": "s.safetensors"}, "does not name tensor b"),
        ({"a": "t.safetensors"}, "t.safetensors: cannot be read"),
    ],
)
def test_an_index_that_differs_from_its_shards_is_refused(
    tmp_path: Path, weight_map: dict[str, str], message: str
) -> None:
    save_file({"a": torch.ones(2, 2), "b": torch.ones(2)}, tmp_path / "s.safetensors")
    index = {"weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=message):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too short"),
        (b"1234", "too short"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "header of"),
        (struct.pack("<Q", 3) + b"{}", "header of"),
        (container(b"[]"), "header"),
        (container(b"{"), "header"),
        (container(b"\xff\xfe"), "header"),
        (container(b'{"a":' + b"[" * 100_000), "header"),
        (container({"t": 1}), "t: "),
        (container({"t": {**entry(), "more": 1}}, bytes(8)), "t: .*more"),
        (container({"t": entry(dtype="F31")}, bytes(8)), "t: unknown type"),
        (container({"t": entry(shape=(-2,))}, bytes(8)), "t: invalid shape"),
        (container({"t": entry(shape=(1,) * 9)}, bytes(8)), "t: invalid shape"),
        (container({"t": entry(shape=(2**40, 2**40))}, bytes(8)), "t: has 8 bytes, its shape"),
        (container({"t": entry(begin=8, end=0)}, bytes(8)), "t: its data"),
        (container({"t": entry(begin=-8, end=0)}, bytes(8)), "t: its data"),
        (container({"t": entry(end=2**62)}, bytes(8)), "t: its data"),
        (container({"t": entry()}, bytes(7)), "t: its data.* truncated; download it again"),
        (container({"t": entry(), "u": entry(begin=4, end=12)}, bytes(12)), "u: its data overlap"),
    ],
)
def test_impossible_files_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        SafetensorsFile(path)


def test_an_integer_weight_is_refused_with_tensor_and_type(tmp_path: Path) -> None:
    save_file({"t": torch.ones(2, 2, dtype=torch.int32)}, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match="tensor t has type I32"):
        SafetensorsFile(tmp_path / "x.safetensors").matrix("t")


@given(data=st.data())
@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_corrupt_or_truncated_files_give_a_model_error_or_another_model(
    tmp_path: Path, data: st.DataObject
) -> None:
    spoiled = bytearray(save({"m": torch.ones(3, 5), "v": torch.ones(7)}))
    for _ in range(data.draw(st.integers(0, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "spoiled.safetensors"
    path.write_bytes(spoiled[: data.draw(st.integers(0, len(spoiled)))])
    try:
        file = SafetensorsFile(path)
        for name, info in file.tensors.items():
            (file.vector if len(info.shape) == 1 else file.matrix)(name)
    except ModelError as error:
        assert str(path) in str(error)
