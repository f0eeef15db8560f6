"""Lines of the log: those of the standard library's formatter, whatever is logged when."""

from __future__ import annotations

import logging

import pytest

from penstock.base.logs import configure_logging


@pytest.fixture
def ours() -> logging.Formatter:
    root = logging.getLogger("penstock")
    before = root.handlers[:], root.level, root.propagate
    switches = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    source = logging._srcfile
    configure_logging()
    formatter = root.handlers[0].formatter
    root.handlers[:], root.level, root.propagate = before
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = switches
    logging._srcfile = source
    assert formatter is not None
    return formatter


def test_lines_are_those_of_the_library(ours: logging.Formatter) -> None:
    theirs = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        raise ValueError("bad")
    except ValueError as error:
        caught = (ValueError, error, error.__traceback__)
    for created in (0.0, 1_700_000_000.0004, 1_700_000_000.9996, 1_700_000_001.25, 1_699_999_999.5):
        for level, told, arguments, problem in (
            (logging.INFO, "%s is %d", ("x", 3), None),
            (logging.WARNING, "100%", (), None),
            (logging.ERROR, "broke", (), caught),
        ):
            record = logging.LogRecord("penstock.a", level, "f", 1, told, arguments, problem)
            record.created, record.msecs = created, created % 1 * 1000
            assert ours.format(record) == theirs.format(record)
