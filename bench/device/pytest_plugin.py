"""A plugin of pytest for the section `tests`: a failure is told and kept when it happens, so that a
run that is cut off has told all it found.

    pytest -p bench.device.pytest_plugin --outcomes FOLDER
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.device.result_log import Record

MOST = 600
"""Characters of a reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="a folder; results.jsonl there is appended to")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # what workers of xdist do, their controller hears of
        config.pluginmanager.register(Outcomes(Record("tests", config.getoption("outcomes"))))


class Outcomes:
    """Of the tests of one run."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._counts[report.outcome] += 1
        if report.failed:
            print()  # after the dots
            self._record.line(report.nodeid, when=report.when, failed=_reason(report))

    def pytest_sessionfinish(self) -> None:
        print()
        self._record.line("tests", **self._counts)


def _reason(report: pytest.TestReport) -> str:
    """The line that says what was wrong, or what there is of it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr if crash is None else crash.message)
    return text[:MOST]
