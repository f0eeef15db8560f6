"""`POST /v1/models/tune` measures a model in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config import EngineSettings
from penstock.tune import process as tune_process
from penstock.tune.outcome import TuneJob
from penstock.tune.types import TuneModelRequest
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama
from tests.support.servers.http_server import MODEL, Serving, serving

URL = "/v1/models/tune"
CANDIDATE = {
    *("isq", "isq_name", "estimated_size_bytes", "vram_usage_percent", "max_context_tokens"),
    *("context_is_model_max", "quality", "fit_status", "recommended"),
}
RESULT = {
    *("model_id", "profile", "backend", "candidates", "recommended_isq", "device_layers"),
    *("device_layers_cli", "paged_attn_mode", "recommended_command", "total_vram_bytes"),
    *("warnings", "notes"),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    """A server that knows the files of its model, which a script replaces."""
    folder = write_small_llama(tmp_path / "small")
    async with serving(aliases={"gpt-4o": MODEL}) as running:
        settings = EngineSettings(model=str(folder), threads=1)
        running.services.models[MODEL].settings = settings
        yield running


async def test_a_served_model_is_tuned(server: Serving) -> None:
    fields = {
        "model_id": "gpt-4o",
        "profile": "quality",
        "cpu": True,
        "dtype": "auto",
        "hf_revision": "main",
        "max_batch_size": 2,
        "max_image_length": 64,
        "max_num_images": 1,
        "max_seq_len": 64,
        "requested_isq": None,
        "token_source": "none",
    }
    answer = await server.http.post(URL, json=fields, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found.keys() >= RESULT and found["candidates"][0].keys() >= CANDIDATE
    assert (found["model_id"], found["profile"], found["backend"]) == (MODEL, "quality", "cpu")
    assert [one["isq"] for one in found["candidates"]] == [None, "int8", "int4"]
    assert found["max_seq_len"] == 64 and found["max_batch_size"] == 2
    for one in found["candidates"]:
        assert one["fit_status"] == "fits" and one["max_context_tokens"] == CONTEXT
        assert 0 < one["vram_usage_percent"] < 1
        assert one["speed"]["prefill_tokens_per_s"] > 0 < one["speed"]["decode_tokens_per_s"]
    assert [one["isq"] for one in found["candidates"] if one["recommended"]] == [None]
    assert found["recommended_isq"] is None
    command = found["recommended_command"].split()
    assert command[:2] == ["penstock", "serve"] and command[3:5] == ["--device", "cpu"]
    assert any("images" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, 400, "model_id"),
        ({"model_id": "other"}, 404, "model_id"),
        ({"model_id": "/etc"}, 404, "model_id"),
        ({"model_id": "../small"}, 404, "model_id"),
        ({"model_id": MODEL, "profile": "best"}, 400, "profile"),
        ({"model_id": MODEL, "max_batch_size": 0}, 400, "max_batch_size"),
        ({"model_id": MODEL, "cpu": 1}, 400, "cpu"),
        ({"model_id": MODEL, "requested_isq": 4}, 400, "requested_isq"),
    ],
)
async def test_an_invalid_field_is_named(
    server: Serving, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = await server.http.post(URL, json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_errors_of_the_process_are_those_of_the_request(server: Serving) -> None:
    fields = {"model_id": MODEL, "requested_isq": "q9"}
    answer = await server.http.post(URL, json=fields, timeout=120)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "requested_isq")
    assert "int8" in error["message"] and error["type"] == "invalid_request_error"


class Child:
    """A child process that waits for `finish`."""

    def __init__(self) -> None:
        self.jobs: list[TuneJob] = []
        self.killed = 0
        self.finish = asyncio.Event()
        self.output = b"{}"

    async def start(self, *words: str, **pipes: Any) -> Child:
        assert words[1:] == ("-m", "penstock.tune.child") and pipes["start_new_session"]
        self.returncode: int | None = None
        return self

    async def communicate(self, written: bytes) -> tuple[bytes, None]:
        self.jobs.append(msgspec.json.decode(written, type=TuneJob))
        await self.finish.wait()
        self.returncode = 0
        return self.output, None

    def kill(self) -> None:
        self.killed += 1

    async def wait(self) -> int:
        return -9


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    child = Child()
    monkeypatch.setattr(tune_process.asyncio, "create_subprocess_exec", child.start)
    return child


async def test_a_client_that_disconnects_ends_the_process(server: Serving, child: Child) -> None:
    asking = asyncio.ensure_future(server.http.post(URL, json={"model_id": MODEL}))
    await server.until(lambda: bool(child.jobs))
    asking.cancel()
    await server.until(lambda: child.killed == 1)


async def test_requests_wait_for_each_other_and_too_many_are_refused(
    server: Serving, child: Child
) -> None:
    child.output = b""  # as of a killed process
    asking = [
        asyncio.ensure_future(server.http.post(URL, json={"model_id": MODEL})) for _ in range(7)
    ]
    await server.until(lambda: sum(one.done() for one in asking) == 2)
    refused = [one.result() for one in asking if one.done()]
    assert [one.status_code for one in refused] == [429, 429]
    assert all(int(one.headers["retry-after"]) > 0 for one in refused)
    assert len(child.jobs) == 1  # the others wait
    child.finish.set()
    answers = await asyncio.gather(*asking)
    assert sorted(one.status_code for one in answers) == [429, 429, 503, 503, 503, 503, 503]
    assert len(child.jobs) == 5


ASKED: dict[str, Any] = {
    "model_id": MODEL,
    "profile": "fast",
    "cpu": True,
    "dtype": "f32",
    "hf_revision": "v2",
    "max_batch_size": 3,
    "max_image_length": 56,
    "max_num_images": 2,
    "max_seq_len": 99,
    "requested_isq": "Q4K",
    "token_source": "literal:hf_x",
}


async def test_every_field_reaches_the_job_and_null_means_absent(
    server: Serving, child: Child
) -> None:
    child.finish.set()
    child.output = b""
    bare = {"model_id": MODEL}
    for fields in (ASKED, dict.fromkeys(ASKED) | bare, bare):
        await server.http.post(URL, json=fields)
    whole, nulls, absent = (job.request for job in child.jobs)
    assert msgspec.structs.asdict(whole) == ASKED
    assert nulls == absent == TuneModelRequest(MODEL)


async def test_the_job_has_the_settings_and_the_memory_of_the_engine(
    server: Serving, child: Child
) -> None:
    child.finish.set()
    child.output = b""
    for name in ("default", "gpt-4o", "who/what"):
        await server.http.post(URL, json={"model_id": name})
    own, alias, other = child.jobs
    assert own.is_served and alias.is_served and not other.is_served
    assert own.engine == alias.engine == server.services.models[MODEL].settings
    assert (own.model_id, other.model_id, other.engine.model) == (MODEL, "who/what", "who/what")
    assert {job.origin for job in child.jobs} == {"client"}
