"""The soak's checks: they must report errors, and accept valid answers."""

from __future__ import annotations

import json

import pytest

from bench.soak.final_checks import audit_log, differences, growth_mib, leaks
from bench.soak.raw_http import Malformed, answers, request
from bench.soak.server import ServerResources, gauges
from bench.soak.target_server import Inconclusive, SoakFailure, TargetServer

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
REFUSAL = b'{"error": {"message": "no", "type": "invalid_request_error", "code": "invalid_value"}}'


def refusal(status: int, body: bytes = REFUSAL) -> bytes:
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def resources(**changed: object) -> ServerResources:
    fields: dict[str, object] = {
        "api_rss_mib": 100.0,
        "processes": {"parent": 1, "worker": 2, "engine": 1, "trial": 1},
        "fds": {"worker": 30, "engine": 12},
        "threads": {"worker": 8},
        "temporary": ("penstock-a",),
        "gauges": {"service_kv_cache_blocks_used": 0.0},
        "leases": 0,
        "retired": 0,
        "busy": 0,
        "unfinished": (),
    }
    return ServerResources(**(fields | changed))  # type: ignore[arg-type]


def test_pipelined_answers_are_separated() -> None:
    raw = refusal(400) + CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" + refusal(404)
    first, second, third = answers(raw)
    assert (first.status, second.body, third.status) == (400, b"abcde", 404)
    assert first.whole and second.whole and third.whole


@pytest.mark.parametrize("cut", [5, 30, len(CHUNKED) + 2, len(CHUNKED) + 9])
def test_a_cut_answer_is_incomplete(cut: int) -> None:
    found = list(answers((CHUNKED + b"3\r\nabc\r\n0\r\n\r\n")[:cut]))
    assert not found or not found[0].whole


@pytest.mark.parametrize("raw", [b"SSH-2.0\r\n\r\n", CHUNKED + b"zz\r\n", b"garbage"])
def test_invalid_http_is_reported(raw: bytes) -> None:
    with pytest.raises(Malformed):
        list(answers(raw))


@pytest.mark.parametrize(
    "raw",
    [
        refusal(500),
        refusal(503),
        refusal(400, b'{"error": {"message": ""}}'),
        refusal(400, b'{"error": {"message": "in File /x/python/penstock/a.py"}}'),
        b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\nno",
    ],
)
def test_a_forbidden_answer_is_reported(raw: bytes) -> None:
    with pytest.raises(SoakFailure):
        TargetServer(0).check_answers(raw, began=0.0)


def test_a_server_error_is_excused_only_during_recovery() -> None:
    target = TargetServer(0)
    target.faults.windows = [(1.0, 2.0, False)]
    with pytest.raises(Inconclusive):
        target.check_answers(refusal(503), began=1.5)
    with pytest.raises(SoakFailure):
        target.check_answers(refusal(503), began=2.5)
    target.faults.windows.append((3.0, None, False))
    with pytest.raises(Inconclusive):
        target.check_answers(refusal(500), began=9.0)
    with pytest.raises(SoakFailure):  # the server does not announce this one in any other way
        target.check_answers(refusal(500, REFUSAL.replace(b"no", b"internal error")), began=9.0)


def test_a_missing_answer_is_excused_only_if_connections_were_cut() -> None:
    target = TargetServer(0, began=1.5)
    target.faults.windows = [(1.0, 2.0, False)]
    with pytest.raises(SoakFailure):
        target.fail_missing("nothing came")
    target.faults.windows.append((1.0, 2.0, True))
    with pytest.raises(Inconclusive):
        target.fail_missing("nothing came")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"gauges": {"service_kv_cache_blocks_used": 3.0}}, "kv_cache_blocks_used is 3"),
        ({"gauges": {"http_requests_in_flight": 1.0}}, "in_flight is 1"),
        ({"leases": 1}, "leases"),
        ({"retired": 1}, "retired"),
        ({"busy": 1}, "sessions"),
        ({"unfinished": ("resp_1",)}, "resp_1"),
        ({"processes": {"parent": 1, "worker": 1, "engine": 1}}, "worker: 2 processes"),
        ({"processes": {"parent": 1, "worker": 2, "engine": 1, "trial": 5}}, "grammar trial"),
        ({"fds": {"worker": 50}}, "worker: 30 descriptors"),
        ({"fds": {"engine": 50}}, "engine: 12 descriptors"),
        ({"threads": {"worker": 20}}, "worker: 8 threads"),
        ({"temporary": ("a", "b")}, "temporary"),
    ],
)
def test_leaked_resources_are_reported(changed: dict[str, object], told: str) -> None:
    (found,) = leaks(resources(), resources(**changed), workers=2)
    assert told in found
    assert not leaks(resources(), resources(), workers=2)


def test_growth_is_measured_after_the_warm_up() -> None:
    flat = [10.0] * 10 + [50.0] * 30
    assert growth_mib(flat) == 0.0
    assert growth_mib([50.0 + k for k in range(40)]) == pytest.approx(20.0)


def test_the_log_has_a_line_of_each_kind_for_each_request() -> None:
    started = {"event": "request started", "request_id": "r1"}
    completed = {"event": "request completed", "request_id": "r1", "status": 200, "outcome": "x"}
    whole = [json.dumps(started), "a plain line", json.dumps(completed)]
    assert audit_log(whole)[0] == []
    assert audit_log(whole)[1] == {"200 x": 1}
    assert len(audit_log(whole[:1])[0]) == 1
    assert audit_log(whole[:1], cut=True)[0] == []
    assert len(audit_log(["{torn", *whole])[0]) == 1
    assert len(audit_log(["Traceback (most recent call last):"])[0]) == 1
    assert audit_log(["x ERROR the engine process ended with status -9"])[0] == []


def test_a_changed_answer_is_reported() -> None:
    one = [[0]] * 5
    assert not differences(one, one)
    assert len(differences(one, [[1], *one[1:]])) == 1


def test_gauges_of_several_labels_are_summed() -> None:
    text = '# HELP x y\nrequests{path="/a b"} 2.0\nrequests{path="/c"} 1.0\nup 1.0\n'
    assert gauges(text) == {"requests": 3.0, "up": 1.0}


def test_a_mapping_is_sent_as_json_and_bytes_unchanged() -> None:
    assert request("POST", "/x", {"a": 1}).endswith(b'Content-Length: 8\r\n\r\n{"a": 1}')
    assert request("GET", "/x", b"\xff").endswith(b"\xff")
