"""Options of the op benchmarks, the measured roofline, and the table at the end of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bench.ops.roofline import Roofline, measure
from penstock.kernels.registry import Cost


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--implementations",
        default="native",
        help="comma-separated implementations to measure: native, reference",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" in metafunc.fixturenames:
        names = str(metafunc.config.getoption("--implementations")).split(",")
        metafunc.parametrize("implementation", names)


@dataclass(frozen=True, slots=True)
class Line:
    """One measured case. `integer`: the peak of int8 products applies."""

    op: str
    case: str
    implementation: str
    seconds: float
    cost: Cost
    integer: bool


@dataclass
class Findings:
    """The results of the run so far."""

    roofline: Roofline | None = None
    lines: list[Line] = field(default_factory=list)


_FINDINGS = pytest.StashKey[Findings]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FINDINGS] = Findings()


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest) -> Findings:
    """Return the collection to which benchmarks add their lines. The roofline is measured first."""
    found = request.config.stash[_FINDINGS]
    found.roofline = measure()
    return found


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print one line per case: time, achieved rates, and the share of the floor that was
    reached."""
    found = config.stash[_FINDINGS]
    if found.roofline is None:
        return
    roofline = found.roofline.best(measure())
    write = terminalreporter.write_line
    write("")
    write(
        f"{roofline.threads} threads: float {roofline.float_operations / 1e9:.0f} GFLOP/s, "
        f"int8 {roofline.integer_operations / 1e9:.0f} GOP/s, memory "
        f"{roofline.read_rate(1 << 40) / 1e9:.0f} GB/s"
    )
    write(f"{'op':<14}{'case':<32}{'by':<10}{'us':>10}{'GB/s':>8}{'GOP/s':>8}{'of floor':>10}")
    for line in found.lines:
        peak = roofline.integer_operations if line.integer else roofline.float_operations
        write(
            f"{line.op:<14}{line.case:<32}{line.implementation:<10}{line.seconds * 1e6:>10.1f}"
            f"{line.cost.moved_bytes / line.seconds / 1e9:>8.1f}"
            f"{line.cost.operations / line.seconds / 1e9:>8.1f}"
            f"{roofline.floor_s(line.cost, peak) / line.seconds:>10.0%}"
        )
