"""`/re_isq` and `/calibration`: statuses, progress and answers over HTTP, with a real model."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import penstock.runtime.cpu.live_weights as cpu_live_weights
from penstock.quant.importance import ImportanceMatrix
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.tiny_model import write_tiny_model
from tests.support.servers.http_server import MODEL, Serving, serving, serving_folder

DEADLINE_S = 60.0
SUMS = ("collecting", "layers", "layers_tracking", "total_rows", "min_rows", "max_rows")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with random weights over a vocabulary of bytes."""
    made = tmp_path_factory.mktemp("tiny")
    folder = write_small_llama(made / "m", vocab=257)
    write_tiny_model(made / "text")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made / "text" / name, folder / name)
    return folder


@pytest.fixture
async def live(folder: Path) -> AsyncIterator[Serving]:
    async with serving_folder(folder) as (server, _):
        yield server


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hold each job before its first layer until the event is set."""
    event, pack = threading.Event(), cpu_live_weights.NativeNewWeights.pack

    def held(new: Any, progress: Any) -> None:
        assert event.wait(DEADLINE_S)
        pack(new, progress)

    monkeypatch.setattr(cpu_live_weights.NativeNewWeights, "pack", held)
    return event


async def ended(server: Serving, path: str = "/re_isq") -> dict[str, Any]:
    """Return the state when the job has ended, after a check that its progress only grew."""
    done = 0
    async with asyncio.timeout(DEADLINE_S):
        while True:
            state: dict[str, Any] = (await server.http.get(path)).json()
            assert state["job"]["layers_done"] >= done
            done = state["job"]["layers_done"]
            if state["job"]["status"] != "running":
                return state
            await asyncio.sleep(0.002)


async def text_of(server: Serving, prompt: str = "once upon a time", tokens: int = 24) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    answer = (await server.http.post("/v1/completions", json=body)).json()
    return json.dumps([answer["choices"][0]["text"], answer["usage"]["completion_tokens"]])


async def test_re_isq_starts_a_job_and_the_answers_become_those_of_the_type(
    live: Serving, folder: Path
) -> None:
    before = (await live.http.get("/re_isq")).json()
    assert before == {"model_id": MODEL, "ggml_type": None, "job": None}
    plain = await text_of(live)
    started = await live.http.post("/re_isq", json={"ggml_type": "INT4"})
    assert started.status_code == 202 and started.json()["job"]["ggml_type"] == "int4"
    state = await ended(live)
    assert state["ggml_type"] == "int4" and state["job"]["status"] == "done"
    assert state["job"]["layers_done"] == state["job"]["layers_total"] > 0
    async with serving_folder(folder, quantization="int4") as (fresh, _):
        assert await text_of(live) == await text_of(fresh)
    back = await live.http.post("/re_isq", json={"ggml_type": "none", "model_id": "default"})
    assert back.status_code == 202
    assert (await ended(live))["ggml_type"] is None
    assert await text_of(live) == plain


async def test_a_stream_across_the_change_is_complete(live: Serving, release: Any) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 100, "ignore_eos": True, "stream": True}
    await live.http.post("/re_isq", json={"ggml_type": "int8"})
    chunks = []
    async with live.http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
            release.set()
    assert chunks[-1]["usage"]["completion_tokens"] == 100
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (await ended(live))["job"]["status"] == "done"


async def test_a_job_can_be_cancelled_and_a_second_one_conflicts(
    live: Serving, release: Any
) -> None:
    plain = await text_of(live)
    await live.http.post("/re_isq", json={"ggml_type": "int4"})
    second = await live.http.post("/re_isq", json={"ggml_type": "int8"})
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "requantization_running"
    assert (await live.http.post("/calibration/start")).status_code == 409
    cancelled = await live.http.post("/re_isq/cancel")
    assert cancelled.status_code == 200
    release.set()
    state = await ended(live)
    assert state["job"]["status"] == "cancelled" and state["ggml_type"] is None
    assert await text_of(live) == plain


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/re_isq", {}, 400, "ggml_type"),
        ("/re_isq", {"ggml_type": 4}, 400, "ggml_type"),
        ("/re_isq", {"ggml_type": "Q4_0_4_4"}, 400, "ggml_type"),
        ("/re_isq", {"ggml_type": "fp8"}, 409, "ggml_type"),
        ("/re_isq", {"ggml_type": "int4", "model_id": "other"}, 404, "model_id"),
        ("/re_isq/cancel", {"model_id": "other"}, 404, "model_id"),
        ("/calibration/start", {"model_id": "other"}, 404, "model_id"),
        ("/calibration/start", {"text": " "}, 400, "text"),
        ("/calibration/apply", {"save_cimatrix": "/etc/x.cimatrix"}, 400, "save_cimatrix"),
        ("/calibration/apply", {"save_cimatrix": "../x.cimatrix"}, 400, "save_cimatrix"),
        ("/calibration/apply", {"save_cimatrix": "x.txt"}, 400, "save_cimatrix"),
        ("/calibration/apply", {"ggml_type": "int5"}, 400, "ggml_type"),
        ("/calibration/apply", {}, 409, None),
    ],
)
async def test_bad_requests_have_honest_statuses(
    live: Serving, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await live.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    if path == "/calibration/apply" and status == 409:
        assert error["message"] == "No calibration data collected; call start first."


async def test_unknown_model_in_a_query_is_404(live: Serving) -> None:
    for path in ("/re_isq", "/calibration/status"):
        assert (await live.http.get(path, params={"model_id": "other"})).status_code == 404


async def test_too_little_memory_is_503_with_the_bytes(
    live: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_live_weights, "available_bytes", lambda: 1000)
    answer = await live.http.post("/re_isq", json={"ggml_type": "int8"})
    assert answer.status_code == 503
    assert "1000 bytes are free" in answer.json()["error"]["message"]


async def test_a_model_whose_weights_cannot_change_is_409() -> None:
    async with serving() as server:
        for method, path, body in (
            ("POST", "/re_isq", {"ggml_type": "int4"}),
            ("GET", "/re_isq", None),
            ("POST", "/calibration/start", {}),
            ("GET", "/calibration/status", None),
            ("POST", "/calibration/apply", {}),
        ):
            answer = await server.http.request(method, path, json=body)
            assert answer.status_code == 409
            assert answer.json()["error"]["code"] == "weights_unchangeable"


async def test_an_unloaded_model_is_503(folder: Path) -> None:
    async with serving_folder(folder) as (server, _):
        await server.http.post("/v1/models/unload", json={"model_id": MODEL})
        answer = await server.http.post("/re_isq", json={"ggml_type": "int4"})
        assert answer.status_code == 503


async def test_calibration_from_traffic(live: Serving, home: Path) -> None:
    idle = (await live.http.get("/calibration/status")).json()
    assert [idle[name] for name in SUMS][0::2] == [False, 0, 0] and idle["layers"] > 0
    started = await live.http.post("/calibration/start")
    assert started.status_code == 200 and started.json()["collecting"] is True
    plain = await text_of(live)
    sums = (await live.http.get("/calibration/status")).json()
    assert sums["layers_tracking"] == sums["layers"] and sums["min_rows"] > 24
    body = {"ggml_type": "int4", "save_cimatrix": "traffic.cimatrix"}
    applied = await live.http.post("/calibration/apply", json=body)
    assert applied.status_code == 202
    assert {name: applied.json()[name] for name in SUMS} == {name: sums[name] for name in SUMS}
    state = await ended(live, "/calibration/status")
    assert (state["job"]["kind"], state["job"]["status"]) == ("calibration", "done")
    assert (state["collecting"], (await live.http.get("/re_isq")).json()["ggml_type"]) == (
        False,
        "int4",
    )
    saved = ImportanceMatrix.read(home / "importance" / "traffic.cimatrix")
    assert saved.datasets == ("traffic",) and len(saved.squares) == sums["layers"]
    assert plain


async def test_calibration_from_a_text(live: Serving) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * 80
    await live.http.post("/calibration/start", json={"text": text})
    rows = [0]
    async with asyncio.timeout(DEADLINE_S):
        while len(rows) < 20 or rows[-1] != rows[-20]:
            state = (await live.http.get("/calibration/status")).json()
            assert state["min_rows"] >= rows[-1], "progress only grows"
            rows.append(state["min_rows"])
            await asyncio.sleep(0.01)
    assert rows[-1] > 80
    cancelled = await live.http.post("/calibration/cancel")
    assert cancelled.status_code == 200
    assert [cancelled.json()[name] for name in SUMS][0::2] == [False, 0, 0]
    assert (await live.http.post("/calibration/apply", json={})).status_code == 409
