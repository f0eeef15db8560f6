"""Compares two reports of `penstock bench`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.cli.bench_report import Level, Report, machine_text, read_report, setting_text
from penstock.cli.output import print_table
from penstock.config import SettingsError

SAME_RATIO: Final = 0.03
"""Figures of two reports that differ by less are called the same."""


class Ratio(msgspec.Struct, frozen=True):
    """One figure of two reports. `ratio`: after / before. `verdict`: of the later report."""

    streams: int
    figure: str
    before: float
    after: float
    ratio: float
    verdict: str


def ratios(before: Report, after: Report) -> list[Ratio]:
    """Compare the figures for each number of streams that both reports have. Raises SettingsError
    if they have none in common."""
    later = {level.streams: level for level in after.levels}
    pairs = [(level, later[level.streams]) for level in before.levels if level.streams in later]
    if not pairs:
        raise SettingsError("the reports have no number of streams in common")
    return [ratio for pair in pairs for ratio in _ratios(*pair)]


def _ratios(before: Level, after: Level) -> list[Ratio]:
    rates = (
        ("prefill, tok/s", before.prefill_rate.median, after.prefill_rate.median),
        ("decode, tok/s", before.decode_rate.median, after.decode_rate.median),
    )
    times = (
        ("first token p50, ms", before.first_token_s.p50, after.first_token_s.p50),
        ("next token p50, ms", before.token_s.p50, after.token_s.p50),
        ("next token p99, ms", before.token_s.p99, after.token_s.p99),
    )
    faster = [Ratio(before.streams, name, a, b, b / a, _verdict(b / a)) for name, a, b in rates]
    shorter = [
        Ratio(before.streams, name, 1000 * a, 1000 * b, b / a, _verdict(a / b))
        for name, a, b in times
    ]
    return [*faster, *shorter]


def _verdict(gain: float) -> str:
    if abs(gain - 1) < SAME_RATIO:
        return "same"
    return "better" if gain > 1 else "worse"


def differences(before: Report, after: Report) -> list[str]:
    """Return the names of the facts in which two reports differ."""
    facts = (
        ("machine", before.machine, after.machine),
        ("version", before.version, after.version),
        ("model", before.fingerprint, after.fingerprint),
        ("measurement", setting_text(before), setting_text(after)),
    )
    return [name for name, first, second in facts if first != second]


def compare(paths: tuple[Path, Path]) -> dict[str, Any]:
    """Return the comparison of two reports as a JSON object. Raises SettingsError, and OSError."""
    before, after = read_report(paths[0]), read_report(paths[1])
    return {
        "before": {"file": str(paths[0]), **_facts(before)},
        "after": {"file": str(paths[1]), **_facts(after)},
        "differences": differences(before, after),
        "ratios": msgspec.to_builtins(ratios(before, after)),
    }


def _facts(report: Report) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(report)
    del facts["levels"]
    return facts


def print_comparison(paths: tuple[Path, Path]) -> None:
    """Print the facts of two reports and a table of the ratios of their figures."""
    reports = [read_report(path) for path in paths]
    for name, path, report in zip(("Before", "After"), paths, reports, strict=True):
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.created))
        print(f"{name + ':':8}{path} ({created})")
        print(f"{'':8}{report.model}, {setting_text(report)}, Penstock {report.version}")
        print(f"{'':8}{machine_text(report.machine)}")
    apart = differences(*reports)
    if apart:
        print(f"\nNot the same: {', '.join(apart)}. The ratios show their effect too.")
    columns = ("Streams", "Figure", "before", "after", "ratio", "After is")
    rows = [
        (
            str(r.streams),
            r.figure,
            f"{r.before:,.1f}",
            f"{r.after:,.1f}",
            f"{r.ratio:.2f}",
            r.verdict,
        )
        for r in ratios(*reports)
    ]
    print()
    print_table(columns, rows, numbers=("Streams", "before", "after", "ratio"))
