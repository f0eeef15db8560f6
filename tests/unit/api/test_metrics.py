"""`/metrics`: names, labels and values; token latencies by the times of engine steps."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import struct
import subprocess
import sys
from datetime import datetime, timezone

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from scripted_answers import CHAT, HELLO

from penstock.agent import AgentLoop
from penstock.api.observability.metrics import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    Metrics,
    TokenHistogram,
)
from penstock.api.observability.metrics_files import (
    SIZES,
    reserve_metrics_files,
    trim_metrics_files,
)
from penstock.api.observability.token_latency import RequestObserver
from penstock.base.errors import Unavailable
from penstock.config import ServerSettings, child_environment
from penstock.dialog import (
    GenerateRequest,
    RunEnded,
    RunStarted,
    Sampling,
    TurnEnded,
    Usage,
)
from penstock.engine.output_queues import OutputQueue, RequestOutputQueues
from penstock.engine.types import TokenDelta, TokenOutput, TokenRequest
from penstock.generation import Generator
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import CREATED, MODEL, ScriptedLoop, serving, spoken


async def samples(server):
    text = (await server.http.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def requests_of(found):
    """Return (method, path, model, status) -> count."""
    names = ("method", "path", "model", "status")
    return {
        tuple(dict(labels)[name] for name in names): value
        for (metric, labels), value in found.items()
        if metric == "http_requests_total"
    }


async def test_requests_are_counted_by_route_and_resolved_model():
    async with serving() as server:
        http = server.http
        await http.post(CHAT, json=HELLO)
        await http.post(CHAT, json=HELLO | {"model": "default", "stream": True})
        await http.post(CHAT, json=HELLO | {"model": "nobody"})
        await http.post(CHAT, content=b"{")
        await http.post(CHAT, json=HELLO | {"temperature": 9, "model": MODEL})
        await http.post("/v1/completions", json={"prompt": "x"})
        await http.get("/v1/models")
        await http.get(f"/v1/models/{MODEL}")
        await http.get("/no/such/route")
        await http.delete(CHAT)
        for path in ("/", "/health", "/metrics"):
            await http.get(path)
        preflight = {"origin": "https://x.org", "access-control-request-method": "POST"}
        await http.options(CHAT, headers=preflight)
        found = await samples(server)
    assert requests_of(found) == {
        ("POST", CHAT, MODEL, "200"): 2,
        ("POST", CHAT, "unknown", "404"): 1,
        ("POST", CHAT, "unknown", "400"): 1,
        ("POST", CHAT, MODEL, "400"): 1,
        ("POST", "/v1/completions", MODEL, "200"): 1,
        ("GET", "/v1/models", "none", "200"): 1,
        ("GET", "/v1/models/{model}", "none", "200"): 1,
        ("GET", "<unmatched>", "none", "404"): 1,
        ("DELETE", CHAT, "none", "405"): 1,
    }
    body = (("method", "POST"), ("model", MODEL), ("path", "/v1/completions"))
    assert found["http_request_body_bytes_sum", tuple(sorted(body))] == len('{"prompt":"x"}')
    in_flight = [value for (name, _), value in found.items() if name == "http_requests_in_flight"]
    assert set(in_flight) == {0.0}


async def test_open_request_is_in_flight():
    gate = asyncio.Event()

    def script(request):
        yield from list(spoken("a")(request))[:2]
        yield gate
        yield from list(spoken("a")(request))[2:]

    async with serving(script) as server:
        answer = asyncio.create_task(server.http.post(CHAT, json=HELLO))
        await server.until(lambda: server.loop.running == 1)
        labels = (("method", "POST"), ("model", MODEL), ("path", CHAT))
        assert (await samples(server))["http_requests_in_flight", labels] == 1
        gate.set()
        await answer
        assert (await samples(server))["http_requests_in_flight", labels] == 0


async def test_disconnected_client_is_counted_with_status_499():
    gate = asyncio.Event()
    async with serving(lambda request: iter([gate])) as server:
        answer = asyncio.create_task(server.http.post(CHAT, json=HELLO))
        await server.until(lambda: server.loop.running == 1)
        answer.cancel()
        await server.until(lambda: server.loop.running == 0)
        await server.until(lambda: len(server.server.server_state.tasks) == 0)
        assert requests_of(await samples(server)) == {("POST", CHAT, MODEL, "499"): 1}


async def test_engine_metrics_carry_no_labels():
    async with serving() as server:
        found = await samples(server)
    for name in ENGINE_GAUGES:
        assert (f"service_{name}", ()) in found
    for name in (*ENGINE_COUNTERS, "sequences_completed"):
        assert (f"service_{name}_total", ()) in found
    assert found["service_engine_up", ()] == 1


async def test_metrics_are_served_while_the_engine_is_down(monkeypatch):
    async with serving() as server:

        async def gauges():
            raise Unavailable("restarting")

        monkeypatch.setattr(server.services.models[MODEL].engine, "gauges", gauges)
        found = await samples(server)
    assert found["service_engine_up", ()] == 0
    assert ("service_sequences_running", ()) not in found


async def test_metrics_can_be_switched_off():
    async with serving(settings=ServerSettings(disable_metrics=True)) as server:
        answer = await server.http.get("/metrics")
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200
    assert (answer.status_code, answer.text) == (503, "metrics disabled")


class SteppedEngine(ScriptedEngine):
    """Tokens at given times of the engine's clock, after the time of the request, observed as an
    engine's client observes them."""

    def __init__(self, offsets_s: list[float], metrics: Metrics | None) -> None:
        super().__init__([1])
        self._offsets_s = offsets_s
        self._queues = RequestOutputQueues(
            self._step, lambda _: None, lambda: 8, RequestObserver(metrics)
        )

    def generate(self, *requests: TokenRequest) -> OutputQueue:
        return self._queues.generate(*requests)

    def _step(self, request: TokenRequest, _: TokenRequest | None) -> None:
        self.requests.append(request)
        self._queues.admit(request.id)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for offset_s in self._offsets_s:
            tokens = (TokenDelta(1), TokenDelta(2))
            self._queues.deliver([TokenOutput(request.id, tokens, began_s + offset_s)])
        last = TokenOutput(request.id, (), began_s + 99, finish="stop")
        loop.call_soon(self._queues.deliver, [last])  # when the reader has taken the tokens


class EngineLoop(ScriptedLoop):
    """A minimal loop between a request and an engine."""

    def __init__(self, engine: SteppedEngine) -> None:
        super().__init__(spoken())
        self._engine = engine

    async def run(self, request: GenerateRequest):
        yield RunStarted(MODEL, CREATED, 1)
        async for _ in self._engine.generate(TokenRequest("r", (1,), Sampling(), 0, 9)):
            pass
        yield TurnEnded(0, "stop", Usage())
        yield RunEnded("completed", Usage())


@pytest.mark.parametrize("stream", [False, True])
async def test_latencies_are_measured_at_engine_steps_of_streams_only(stream):
    metrics = Metrics()
    loop = EngineLoop(SteppedEngine([10.0, 10.5, 11.5], metrics))
    async with serving(models={MODEL: loop}, metrics=metrics) as server:
        await server.http.post(CHAT, json=HELLO | {"stream": stream})
        found = await samples(server)
    labels = (("method", "POST"), ("model", MODEL), ("path", CHAT), ("status", "200"))
    first = found.get(("service_time_to_first_token_seconds_count", labels), 0)
    between = found.get(("service_inter_token_latency_seconds_count", labels), 0)
    assert (first, between) == ((1, 4) if stream else (0, 0))
    if stream:
        waited_s = found["service_time_to_first_token_seconds_sum", labels]
        assert 10.0 <= waited_s < 15.0
        total_s = found["service_inter_token_latency_seconds_sum", labels]
        assert total_s == pytest.approx(1.5)


def test_joined_tokens_are_counted_like_single_ones():
    def exposed(name: str) -> str:
        return generate_latest(registries[name]).decode()

    registries = {name: CollectorRegistry() for name in ("once", "each")}
    bounds = {"buckets": (0.001, 0.01, 0.1)}
    once = TokenHistogram("t", "-", registry=registries["once"], **bounds)
    each = TokenHistogram("t", "-", registry=registries["each"], **bounds)
    once.add([6, 0, 1, 2], 14.054)
    for amount in (0.0, 0.0, 0.001, 0.001, 0.001, 0.001, 0.05, 7.0, 7.0):
        each.observe(amount)
    assert exposed("once") == exposed("each")


WORKER = """
import sys
from penstock.api.observability.metrics import Metrics, TokenHistogram
from penstock.api.observability.request_record import RequestRecord
metrics = Metrics(sys.argv[1])
record = RequestRecord("id", "POST", "/x", None, route="/x", model="m", status=200)
metrics.request_started(record)
metrics.request_finished(record, 0.5)
if sys.argv[2] == "expose":
    sys.stdout.write(metrics.expose(None).decode())
"""
COUNTED = '{method="POST",model="m",path="/x",status="200"}'
RESERVING = """
import os, sys
from pathlib import Path
from penstock.api.observability.metrics_files import reserve_metrics_files
reserve_metrics_files(Path(sys.argv[1]), os.getpid())
"""


def exposed(folder, script):
    """Return the metrics that a separate process exposes after one request."""
    environment = child_environment(PROMETHEUS_MULTIPROC_DIR=str(folder))
    command = [sys.executable, "-c", script, str(folder), "expose"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def test_metrics_files_are_preallocated(tmp_path):
    """Otherwise a write to a new page would kill the process if the disk is full."""
    assert f"http_requests_total{COUNTED} 1.0" in exposed(tmp_path, RESERVING + WORKER)
    for kind, size_bytes in SIZES.items():
        (file,) = tmp_path.glob(f"{kind}_*.db")
        (used,) = struct.unpack("i", file.read_bytes()[:4])
        assert 8 < used < size_bytes == file.stat().st_size
        assert 512 * file.stat().st_blocks >= size_bytes


def test_metrics_files_of_a_dead_process_are_trimmed(tmp_path):
    exposed(tmp_path, RESERVING + WORKER)
    trim_metrics_files(tmp_path, int(next(tmp_path.iterdir()).stem.rpartition("_")[2]))
    assert all(file.stat().st_size < 8192 for file in tmp_path.iterdir())
    assert f"http_requests_total{COUNTED} 2.0" in exposed(tmp_path, WORKER)


def test_metrics_files_are_removed_if_the_disk_is_full(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        reserve_metrics_files(tmp_path, 7)
    assert not list(tmp_path.iterdir())


def test_any_api_process_exposes_the_sum_of_all_processes(tmp_path):
    exposed(tmp_path, WORKER)
    out = exposed(tmp_path, WORKER)
    lines = dict(line.rsplit(" ", 1) for line in out.splitlines() if not line.startswith("#"))
    assert lines[f"http_requests_total{COUNTED}"] == "2.0"
    assert lines[f"http_request_duration_seconds_sum{COUNTED}"] == "1.0"


@pytest.mark.parametrize("form", ["text", "json"])
async def test_access_log_has_start_and_end_of_a_request(form, caplog):
    caplog.set_level("INFO", logger="penstock.access")
    async with serving(settings=ServerSettings(access_log_format=form)) as server:
        headers = {"x-request-id": "req-7"}
        await server.http.post(CHAT + "?x=%0Ainjected", json=HELLO, headers=headers)
        await server.http.get("/health")
    lines = [r.getMessage() for r in caplog.records if r.name == "penstock.access"]
    assert len(lines) == 2 and all("req-7" in line and "\n" not in line for line in lines)
    if form == "json":
        started, completed = (json.loads(line) for line in lines)
        assert started["event"] == "request started" and started["path"] == CHAT
        times = [datetime.fromisoformat(line["time"]) for line in (started, completed)]
        assert times == sorted(times) and times[0].tzinfo == timezone.utc
        assert (completed["status"], completed["model"]) == (200, MODEL)
        assert completed["outcome"] == "completed" and completed["duration_ms"] >= 0
    else:
        assert lines[0].startswith("request started") and "outcome=completed" in lines[1]


@pytest.mark.parametrize("metrics", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", HELLO | {"max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_access_log_has_token_counts_and_time_to_first_token(
    stream, path, body, metrics, caplog
):
    caplog.set_level("INFO", logger="penstock.access")
    measured = Metrics() if metrics else None
    stepped = SteppedEngine([10.0, 10.5, 11.5], measured)
    generator = Generator(stepped, tiny_tokenizer(), tiny_template())
    settings = ServerSettings(access_log_format="json", disable_metrics=not metrics)
    models = {MODEL: AgentLoop(generator)}
    async with serving(models=models, metrics=measured, settings=settings) as server:
        answer = await server.http.post(path, json=body | {"stream": stream})
        assert answer.status_code == 200
    line = json.loads([r for r in caplog.records if r.name == "penstock.access"][-1].getMessage())
    assert line["prompt_tokens"] == len(stepped.requests[0].token_ids)
    assert line["completion_tokens"] == 6
    assert 10_000 <= line["first_token_ms"] < 15_000


async def test_access_log_can_include_housekeeping_or_be_off(caplog):
    caplog.set_level("INFO", logger="penstock.access")
    async with serving(settings=ServerSettings(access_log_health=True)) as server:
        await server.http.get("/health")
    assert len([r for r in caplog.records if r.name == "penstock.access"]) == 2
    caplog.clear()
    async with serving(settings=ServerSettings(disable_access_log=True)) as server:
        await server.http.post(CHAT, json=HELLO)
    assert not [r for r in caplog.records if r.name == "penstock.access"]
