"""Options of the op benchmarks, the measured roofline, and the table at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.ops.roofline import Roofline, measure


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--implementations",
        default="native",
        help="which to measure, with commas: native, reference",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" in metafunc.fixturenames:
        names = str(metafunc.config.getoption("--implementations")).split(",")
        metafunc.parametrize("implementation", names)


_FOUND: dict[str, Any] = {"lines": []}


@pytest.fixture(scope="session")
def roofline() -> Roofline:
    """Measured once for the whole run."""
    found = _FOUND["roofline"] = measure()
    return found


@pytest.fixture
def lines() -> Iterator[list[tuple[Any, ...]]]:
    """Where a benchmark leaves its line of the table."""
    yield _FOUND["lines"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per case: time, achieved rates, and the share of the floor that was reached."""
    roofline = _FOUND.get("roofline")
    if roofline is None:
        return
    write = terminalreporter.write_line
    write("")
    write(
        f"{roofline.threads} threads: float {roofline.float_operations / 1e9:.0f} GFLOP/s, "
        f"int8 {roofline.integer_operations / 1e9:.0f} GOP/s, memory "
        f"{roofline.read_rate(1 << 40) / 1e9:.0f} GB/s"
    )
    write(f"{'op':<14}{'case':<32}{'by':<10}{'us':>10}{'GB/s':>8}{'GOP/s':>8}{'of floor':>10}")
    for op, case, implementation, seconds, cost, floor_s in _FOUND["lines"]:
        write(
            f"{op:<14}{case:<32}{implementation:<10}{seconds * 1e6:>10.1f}"
            f"{cost.moved_bytes / seconds / 1e9:>8.1f}{cost.operations / seconds / 1e9:>8.1f}"
            f"{floor_s / seconds:>10.0%}"
        )
