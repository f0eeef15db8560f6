"""Requests without sampling fields use the defaults of the server and the model, which the model
card shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.agent import load_runners
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.models.hub.catalogue import CATALOGUE
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.sampling_defaults import operator_sampling
from tests.support.checkpoints.tiny_gguf import write_tiny_gguf
from tests.support.checkpoints.tiny_model import write_tiny_model
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving

BUILT_IN = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
OWN = {
    "general.sampling.temp": 0.5,
    "general.sampling.top_k": 7,
    "general.sampling.penalty_repeat": 1.25,
}
GENERATION = {"do_sample": True, "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.25}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}

Ask = Callable[..., AbstractAsyncContextManager[tuple[Serving, ScriptedEngine]]]


@pytest.fixture
def serve(tmp_path: Path) -> Ask:
    """Serve the text side of model files with a scripted engine and these options."""

    @asynccontextmanager
    async def start(
        files: ModelFiles, **options: Any
    ) -> AsyncIterator[tuple[Serving, ScriptedEngine]]:
        engine = ScriptedEngine([104, 105])
        asked = operator_sampling(EngineSettings(**options))
        runners = load_runners(files, engine, sampling=asked)
        async with serving(models={MODEL: runners}, engine=engine) as server:
            yield server, engine

    return start


def gguf(tmp_path: Path, keys: dict[str, Any] | None = None, name: str = "some.gguf") -> ModelFiles:
    return files_at(write_tiny_gguf(tmp_path / name, keys), "some")


def folder(tmp_path: Path, generation: dict[str, Any] | None) -> ModelFiles:
    path = tmp_path / "folder"
    write_tiny_model(path)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return files_at(path, "some")


async def drawn(server: Serving, engine: ScriptedEngine, **fields: Any) -> Sampling:
    """Return the sampling that the engine receives for a chat with these fields."""
    body = {**ROUTES["/v1/chat/completions"], **fields}
    assert (await server.http.post("/v1/chat/completions", json=body)).status_code == 200
    return engine.requests[-1].sampling


async def card(server: Serving) -> dict[str, Any]:
    answer: dict[str, Any] = (await server.http.get(f"/v1/models/{MODEL}")).json()
    return answer["sampling_defaults"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", ROUTES)
async def test_model_without_defaults_gets_the_built_in_ones(
    tmp_path: Path, serve: Ask, path: str
) -> None:
    async with serve(gguf(tmp_path)) as (server, engine):
        assert (await server.http.post(path, json=ROUTES[path])).status_code == 200
        assert engine.requests[-1].sampling == BUILT_IN
        assert await card(server) == {
            "temperature": 0.8,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "repetition_penalty": None,
            "source": "built-in",
            "options": [],
        }


async def test_request_overrides_each_field(tmp_path: Path, serve: Ask) -> None:
    async with serve(gguf(tmp_path)) as (server, engine):
        sampling = await drawn(server, engine, temperature=1.5)
        assert sampling == Sampling(temperature=1.5, top_k=40, top_p=0.95, min_p=0.05)
        off = {"top_p": 1, "min_p": 0, "temperature": 1}
        for top_k in (0, -1, None):
            assert await drawn(server, engine, top_k=top_k, **off) == Sampling(temperature=1.0)
        assert (await drawn(server, engine, temperature=None)).temperature == 0.8


@pytest.mark.parametrize("kind", ["general.sampling", "generation_config.json"])
async def test_model_defaults_replace_all_built_in_ones(
    tmp_path: Path, serve: Ask, kind: str
) -> None:
    files = gguf(tmp_path, OWN) if kind == "general.sampling" else folder(tmp_path, GENERATION)
    async with serve(files) as (server, engine):
        wanted = Sampling(temperature=0.5, top_k=7, repetition_penalty=1.25)
        assert await drawn(server, engine) == wanted
        shown = await card(server)
    assert shown["source"] == kind
    assert (shown["top_k"], shown["top_p"], shown["repetition_penalty"]) == (7, None, 1.25)


@pytest.mark.parametrize("generation", [None, {"eos_token_id": 256}, {"repetition_penalty": 1.5}])
async def test_folder_without_sampling_parameters_gets_the_built_in_ones(
    tmp_path: Path, serve: Ask, generation: dict[str, Any] | None
) -> None:
    async with serve(folder(tmp_path, generation)) as (server, engine):
        sampling = await drawn(server, engine)
    penalty = (generation or {}).get("repetition_penalty")
    assert sampling == Sampling(0.8, 40, 0.95, 0.05, repetition_penalty=penalty)


@pytest.mark.parametrize("entry", [e for e in CATALOGUE.values() if e.sampling is not None])
async def test_catalogue_model_is_recognized_by_its_name_and_its_file_name(
    tmp_path: Path, serve: Ask, entry: Any
) -> None:
    path = write_tiny_gguf(tmp_path / "any.gguf")
    named = ModelFiles(entry.name, "gguf", path)
    async with serve(named) as (server, engine):
        assert await drawn(server, engine) == entry.sampling
        assert (await card(server))["source"] == "catalogue"
    async with serve(gguf(tmp_path, name=entry.file)) as (server, engine):
        assert await drawn(server, engine) == entry.sampling
    async with serve(gguf(tmp_path, OWN, name=entry.file)) as (server, engine):
        assert (await drawn(server, engine)).temperature == 0.5  # the file overrides the catalogue


async def test_server_options_override_the_model(tmp_path: Path, serve: Ask) -> None:
    options = {"temperature": 0.25, "top_p": 0.5, "min_p": 0.125, "repetition_penalty": 1.5}
    async with serve(gguf(tmp_path, OWN), top_k=0, **options) as (server, engine):
        assert await drawn(server, engine) == Sampling(**options)
        assert (await drawn(server, engine, temperature=1)).temperature == 1.0
        shown = await card(server)
    assert shown["options"] == ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"]
    assert (shown["temperature"], shown["top_k"]) == (0.25, None)
