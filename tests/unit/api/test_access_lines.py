"""Lines of the access log as they reach standard error, in a process that has set its log up."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from penstock.api.access_log import AccessLog, configure_access_log, log
from penstock.api.record import RequestRecord
from penstock.base.logs import configure_logging


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The process's log is set up again as it was."""
    root = logging.getLogger("penstock")
    names = ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile")
    switches = {name: getattr(logging, name) for name in names}
    saved = [(each, each.handlers[:], each.propagate, each.disabled) for each in (root, log)]
    level = root.level
    yield
    for each, handlers, propagate, disabled in saved:
        each.handlers[:], each.propagate, each.disabled = handlers, propagate, disabled
    root.setLevel(level)
    for name, value in switches.items():
        setattr(logging, name, value)


def tell(form: str, *, enabled: bool = True) -> None:
    configure_logging()
    configure_access_log(form, enabled=enabled)  # type: ignore[arg-type]
    record = RequestRecord("req-7", "POST", "/v1/x", 9, route="/v1/x", status=200)
    AccessLog(form).completed(record, 0.25)  # type: ignore[arg-type]


def test_text_lines_look_like_those_of_other_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    tell("text")
    logging.getLogger("penstock.other").info("hi")
    mine, other = capsys.readouterr().err.splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(time + " INFO penstock.other: hi", other)
    assert re.fullmatch(
        time + " INFO penstock.access: request completed request_id=req-7 method=POST"
        " route=/v1/x model=none status=200 duration_ms=250.0 outcome=completed",
        mine,
    )


def test_json_lines_carry_nothing_but_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    tell("json")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["request_id"] == "req-7"


def test_a_log_that_is_off_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tell("text", enabled=False)
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_written_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        configure_logging()
    configure_access_log("text", enabled=True)
    AccessLog("text").completed(RequestRecord("req-7", "POST", "/v1/x", 9), 0.25)
