"""The table of `python -m bench lab` follows from given times and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.lab.command import main
from bench.lab.kernel_table import OPERANDS, Limits, Measured, Product, cliff_lines, cliffs, table
from penstock.quant.gguf.ggml_types import TYPES

LIMITS = Limits(
    read_bytes_s=10e9,
    multiply_adds_s={
        "avx2": {"4": 100e9, "6": 80e9, "8": 50e9, "float": 40e9},
        "avx512": {"4": 400e9, "6": 400e9, "8": 400e9, "float": 80e9},
    },
)
SHAPE = (1000, 1024)
ONE = Product("Q4_0", SHAPE, 1)  # 576,000 bytes of weights, 8,096 of rows; 1.024e6 multiply-adds
MANY = Product("Q4_0", SHAPE, 512)


def test_every_type_has_operands() -> None:
    assert set(OPERANDS) <= set(TYPES)


def test_one_row_waits_for_memory() -> None:
    assert ONE.moved_bytes == 1000 * 1024 * 18 / 32 + 4 * (1000 + 1024)
    assert LIMITS.floor_s(ONE, "avx2") == pytest.approx(584_096 / 10e9)
    assert LIMITS.floor_s(ONE, "avx512") == LIMITS.floor_s(ONE, "avx2")
    assert Measured(ONE, {"avx2": 1e-4}).bound(LIMITS) == "memory"


def test_many_rows_wait_for_the_multiply_adds_of_the_isa() -> None:
    assert LIMITS.floor_s(MANY, "avx2") == pytest.approx(512 * 1.024e6 / 100e9)
    assert LIMITS.floor_s(MANY, "avx512") == pytest.approx(512 * 1.024e6 / 400e9)
    assert Measured(MANY, {"avx2": 0.01, "avx512": 0.002}).bound(LIMITS) == "arithmetic"


@pytest.mark.parametrize(("weights", "rate"), [("Q6_K", 80e9), ("Q8_0", 50e9), ("BF16", 40e9)])
def test_wider_weights_have_floors_of_their_own(weights: str, rate: float) -> None:
    product = Product(weights, SHAPE, 512)
    assert LIMITS.floor_s(product, "avx2") == pytest.approx(product.multiply_adds / rate)


def test_an_isa_without_known_arithmetic_has_the_floor_of_memory() -> None:
    assert LIMITS.floor_s(MANY, "neon") == pytest.approx(MANY.moved_bytes / 10e9)


def test_the_fastest_isa_wins_by_its_ratio_to_the_next() -> None:
    one = Measured(MANY, {"avx2": 0.0105, "avx512": 0.002, "amx": 0.003})
    assert (one.winner, one.next_ratio) == ("avx512", pytest.approx(1.5))
    assert one.floor_share(LIMITS) == pytest.approx(512 * 1.024e6 / 400e9 / 0.002)
    alone = Measured(MANY, {"avx2": 0.0105})
    assert (alone.winner, alone.next_ratio) == ("avx2", None)


def test_a_slower_isa_is_a_cliff_beside_the_next_narrower_one_only() -> None:
    measured = [
        Measured(ONE, {"avx2": 1.0, "avx512": 1.04, "amx": 2.08}),
        Measured(MANY, {"avx2": 4.0, "avx512": 1.0, "amx": 3.0}),
    ]
    assert [(one.product, one.isa, one.below, one.ratio) for one in cliffs(measured)] == [
        (MANY, "amx", "avx512", 3.0),
        (ONE, "amx", "avx512", 2.0),
    ]
    assert cliff_lines(measured).splitlines() == [
        "SLOWER: amx takes 3.00 times the time of avx512: Q4_0, 1000 x 1024, 512 rows",
        "SLOWER: amx takes 2.00 times the time of avx512: Q4_0, 1000 x 1024, 1 row",
    ]


def test_the_absence_of_cliffs_is_said() -> None:
    fine = [Measured(ONE, {"avx2": 1.0, "avx512": 1.05})]
    assert cliff_lines(fine).startswith("No instruction set takes over")
    assert cliff_lines([Measured(ONE, {"avx2": 1.0})]).startswith("One instruction set")


def test_the_table_has_a_line_for_each_product() -> None:
    measured = [
        Measured(ONE, {"avx2": 1e-4, "avx512": 8e-5}),
        Measured(MANY, {"avx2": 0.01048576}),
    ]
    assert table(measured, LIMITS).splitlines()[2:] == [
        "| Q4_0 | 1000 x 1024 | 1 | avx512 | 80.0 | 1.25 | 73% | memory |",
        "| Q4_0 | 1000 x 1024 | 512 | avx2 | 10485.8 |  | 50% | arithmetic |",
    ]


def test_this_processor_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lab.json"
    small = ("--weights", "Q4_0,BF16", "--shapes", "48x256", "--rows", "1,3", "--seconds", "0.1")
    main([*small, "--threads", "1", "--out", str(out)])
    result = json.loads(out.read_text())
    assert [(one["weights"], one["rows"]) for one in result["products"]] == [
        ("Q4_0", 1),
        ("Q4_0", 3),
        ("BF16", 1),
        ("BF16", 3),
    ]
    for one in result["products"]:
        assert one["winner"] in one["us"] and set(one["floor_us"]) == set(one["us"])
        assert min(one["us"].values()) > 0 and one["floor_share"] > 0
    assert result["read_gb_s"] > 0
    assert "| Q4_0 | 48 x 256 | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--weights", "Q9_9", "'Q9_9' is not one of Q4_0"),
        ("--isas", "emulated_amx", "'emulated_amx' is not one of"),
        ("--shapes", "48x100", "K must be a multiple of 256"),
        ("--rows", "0", "'0' is no number from 1 on"),
    ],
)
def test_an_impossible_option_is_refused(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main([option, value])
    assert exited.value.code == 2 and said in capsys.readouterr().err
