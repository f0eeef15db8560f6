"""Repeated failures are logged once, then rarely with their number."""

from __future__ import annotations

import logging

import pytest

from penstock.engine.throttled_log import REPEATED_EVERY_S, ThrottledLog


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> ThrottledLog:
    caplog.set_level(logging.ERROR)
    return ThrottledLog(logging.getLogger(__name__))


def test_the_first_is_logged_and_later_ones_with_their_number(
    failures: ThrottledLog, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(0, int(2 * REPEATED_EVERY_S) + 1, 30):
        failures.note(f"it needs {second} MiB", float(second))
    assert caplog.messages == [
        "it needs 0 MiB",
        "it needs 300 MiB (the same as the 9 times before, not logged)",
        "it needs 600 MiB (the same as the 9 times before, not logged)",
    ]


def test_another_kind_is_logged_at_once(
    failures: ThrottledLog, caplog: pytest.LogCaptureFixture
) -> None:
    for failure in ("no memory", "no memory", "no file", "no memory"):
        failures.note(failure, 1.0)
    assert caplog.messages == ["no memory", "no file", "no memory"]


def test_after_all_was_well_the_next_one_is_the_first(
    failures: ThrottledLog, caplog: pytest.LogCaptureFixture
) -> None:
    failures.note("no memory", 1.0)
    failures.clear()
    failures.note("no memory", 2.0)
    assert caplog.messages == ["no memory", "no memory"]
