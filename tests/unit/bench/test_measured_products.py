"""Dispatch of dense products reads the table that the device script measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from bench.device import products
from bench.device.machine import Bench
from bench.device.products import bounds, write_tables
from bench.device.result_log import Record
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.triton.linear_choice import (
    TABLE,
    choose,
    choose_by,
    choose_float8,
    read_table,
)


def test_the_measured_table_round_trips(tmp_path: Path) -> None:
    measured = {
        (4096, 4096): [
            (1, "stream"),
            (16, "stream"),
            (32, "library"),
            (64, "stream"),
            (128, "library"),
        ],
        (1024, 4096): [(1, "library"), (16, "library")],
        (512, 64): [(1, "stream"), (16, "stream")],
    }
    table = {f"{rows}x{width}": bounds(best) for (rows, width), best in measured.items()}
    write_tables(tmp_path / "linear.json", 90, {"": table})
    read = read_table(tmp_path / "linear.json", 90)
    for shape, best in measured.items():
        for tokens, name in best:
            assert choose_by(read, tokens, shape) == name, (shape, tokens)
    assert choose_by(read, 40, (4096, 4096)) == "stream"
    assert choose_by(read, 129, (4096, 4096)) == "library"
    assert read_table(tmp_path / "linear.json", 80) == {}


def test_a_kernel_with_wrong_results_cannot_be_the_fastest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def calls(bench: Bench, x: torch.Tensor, packed: Any) -> products.Calls:
        right = bench.ops.linear(x, packed)
        wrong, broken = right.clone(), torch.full_like(right, float("nan"))
        wrong[-1] *= 1.1
        return {"stream": lambda: wrong, "staged": lambda: broken, "library": lambda: right}

    def seconds(bench: Bench, call: Any) -> float:
        return 1.0 if torch.equal(call(), call()) else 0.5

    monkeypatch.setattr(products, "_calls", calls)
    monkeypatch.setattr(Bench, "seconds", seconds)
    bench = Bench("cpu", torch.float32, ReferenceOps(), True)
    products.measure(bench, Record("products", None), tmp_path)
    table = json.loads((tmp_path / "linear.json").read_text())["0"]
    assert table and not any(table.values())  # the last kernel, cuBLAS, for any number of rows


def test_unmeasured_products_are_streamed_for_the_rows_of_a_tile() -> None:
    shape = (333, 77)
    assert [choose(tokens, shape, 90) for tokens in (1, 16, 17, 4096)] == [
        *("stream", "stream", "library", "library"),
    ]


def test_the_measured_table_of_float8_round_trips(tmp_path: Path) -> None:
    best = [(1, "widen"), (16, "widen"), (32, "float8"), (64, "float8")]
    for kind in ("-float8", "-float8-experts"):
        table = {"64x96": bounds(best, "float8")}
        write_tables(tmp_path / "linear.json", 90, {"": {}, kind: table})
        read = read_table(tmp_path / "linear.json", f"90{kind}")
        assert read == read_table(TABLE, f"90{kind}") | {"64x96": [[16, "widen"]]}
    assert read_table(tmp_path / "linear.json", 90) == read_table(TABLE, 90)


def test_float8_tensor_cores_serve_many_rows_if_the_gpu_has_them() -> None:
    def chosen(capability: int, width: int, invariant: bool = False) -> list[str]:
        return [choose_float8(rows, (333, width), capability, invariant) for rows in (1, 16, 17)]

    assert chosen(90, 256) == ["widen", "widen", "library"]
    assert chosen(90, 200) == chosen(80, 256) == ["widen"] * 3
    assert chosen(90, 256, True) == ["float8"] * 3
    assert chosen(80, 256, True) == chosen(90, 200, True) == ["widen"] * 3


def test_sizes_that_are_not_measured_are_kept(tmp_path: Path) -> None:
    found = json.loads(TABLE.read_text())
    for kind, size, best in (("-float8", "1x1", "widen"), ("", "2x2", "stream")):
        write_tables(tmp_path / "linear.json", 90, {kind: {size: [(1, best)]}})
        found[f"90{kind}"][size] = [[1, best]]
    assert json.loads((tmp_path / "linear.json").read_text()) == found


def test_results_measured_before_a_cut_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(products, "_float8_calls", cut_off)
    bench = Bench("cpu", torch.float32, ReferenceOps(), rehearsed=True)
    with pytest.raises(KeyboardInterrupt):
        products.measure(bench, Record("products", None), tmp_path)
    table = json.loads((tmp_path / "linear.json").read_text())
    assert len(table["0"]) == 5 and not table["0-float8"]
