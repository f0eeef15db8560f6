"""Pytest plugin of the section `tests`: it records each failure at once, so that a run that is cut
off keeps its results.

    pytest -p bench.device.pytest_plugin --outcomes FOLDER
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.device.result_log import Record

MOST = 600
"""Maximum characters of a reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcomes", type=Path, help="folder; results are appended to its results.jsonl"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the controller receives the reports of xdist workers
        config.pluginmanager.register(Outcomes(Record("tests", config.getoption("outcomes"))))


class Outcomes:
    """Records the failed tests of one run and counts its outcomes."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._counts[report.outcome] += 1
        if report.failed:
            print()  # ends the line of dots
            self._record.line(report.nodeid, when=report.when, failed=_reason(report))

    def pytest_sessionfinish(self) -> None:
        print()
        self._record.line("tests", **self._counts)


def _reason(report: pytest.TestReport) -> str:
    """Return the line of a report that says why the test failed, or its whole text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr if crash is None else crash.message)
    return text[:MOST]
