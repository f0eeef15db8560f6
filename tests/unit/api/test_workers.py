"""Several API processes over one socket and one engine."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from scripted_engine import INFO
from stores import sqlite_settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from penstock.api.server import bind_socket, ready_line, url_of
from penstock.api.workers import WorkerGroup, WorkerTask
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, ServerSettings
from penstock.engine.server import EngineServer
from penstock.engine.types import EngineGauges, TokenChunk, TokenDelta, TokenRequest
from penstock.models.vocabulary import Vocabulary

pytestmark = pytest.mark.slow

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class EchoCore:
    """Gives each request its own prompt back, a token a step."""

    info = INFO

    def __init__(self) -> None:
        self._left: dict[str, list[int]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Nothing here becomes ready by itself."""

    def teach(self, vocabulary: Vocabulary) -> None:
        """Echoes need no tokenizer."""

    def submit(self, request: TokenRequest) -> None:
        self._left[request.id] = list(request.token_ids)

    def abort(self, request_id: str) -> None:
        self._left.pop(request_id, None)

    def step(self) -> list[TokenChunk]:
        now = time.monotonic()
        chunks = []
        for name, left in list(self._left.items()):
            token = left.pop(0)
            finish = None if left else "stop"
            chunks.append(TokenChunk(name, (TokenDelta(token),), now, 0, finish))
            if finish:
                del self._left[name]
        return chunks

    def gauges(self) -> EngineGauges:
        return EngineGauges(sequences_running=len(self._left))


@pytest.fixture
def engine_socket(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "engine.sock")
    server = EngineServer(EchoCore(), path)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield path
    server.stop()
    thread.join()


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with all that the text side of a model reads."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": len(vocab),
        "hidden_act": "silu",
        "eos_token_id": vocab["<end>"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    extra = {"eos_token": "<end>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
    return str(folder)


def task_for(model: str, engine_socket: str, listener: int) -> WorkerTask:
    store = sqlite_settings(Path(engine_socket).parent)
    settings = ServerSettings(host="127.0.0.1", workers=2, drain_timeout_s=5.0, store=store)
    return WorkerTask(EngineSettings(model=model), settings, engine_socket, listener)


async def ask(url: str, text: str) -> str:
    """One request on a connection of its own, so that either worker may get it."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        body = {"messages": [{"role": "user", "content": text}]}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


async def until_answered(url: str) -> None:
    while True:
        try:
            assert await ask(url, "back") == "back"
            return
        except httpx.TransportError:
            await asyncio.sleep(0.05)


async def test_workers_share_socket_engine_and_metrics(model, engine_socket):
    with bind_socket("127.0.0.1", 0) as bound:
        url = url_of(bound)
        group = WorkerGroup(task_for(model, engine_socket, bound.fileno()))
        try:
            await group.start()
            info = await group.wait_ready()
            assert url in ready_line(info, EngineSettings(), bound)
            texts = [f"text {index}" for index in range(20)]
            assert await asyncio.gather(*(ask(url, text) for text in texts)) == texts
            async with httpx.AsyncClient(base_url=url) as http:
                metrics = (await http.get("/metrics")).text
            line = next(x for x in metrics.splitlines() if x.startswith("http_requests_total{"))
            assert line.endswith(" 20.0") and "service_sequences_running 0.0" in metrics
            group.stop()
            await group.wait_stopped()
            assert [process.returncode for process in group._processes.values()] == [0, 0]
        finally:
            await group.close()


async def test_what_one_worker_stores_outlives_it_and_is_every_workers(model, engine_socket):
    with bind_socket("127.0.0.1", 0) as bound:
        url = url_of(bound)
        group = WorkerGroup(task_for(model, engine_socket, bound.fileno()))
        try:
            await group.start()
            await group.wait_ready()
            ids = [await upload(url, f"text {number}") for number in range(6)]
            for process in list(group._processes.values()):
                process.send_signal(signal.SIGKILL)
                await process.wait()
            await until_answered(url)
            for number, id in enumerate(ids * 2):
                async with httpx.AsyncClient(base_url=url, timeout=30) as http:
                    content = await http.get(f"/v1/files/{id}/content")
                    assert content.text == f"text {number % 6}"
            group.stop()
            await group.wait_stopped()
        finally:
            await group.close()


async def upload(url: str, text: str) -> str:
    """The id of a new file."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        files, data = {"file": ("a.txt", text.encode())}, {"purpose": "user_data"}
        answer = await http.post("/v1/files", files=files, data=data)
        return str(answer.json()["id"])


async def test_killed_workers_are_restarted(model, engine_socket):
    with bind_socket("127.0.0.1", 0) as bound:
        url = url_of(bound)
        group = WorkerGroup(task_for(model, engine_socket, bound.fileno()))
        try:
            await group.start()
            await group.wait_ready()
            for process in list(group._processes.values()):
                process.send_signal(signal.SIGKILL)
                await process.wait()
            await until_answered(url)
            group.stop()
            await group.wait_stopped()
        finally:
            await group.close()


async def test_worker_that_cannot_start_says_why(tmp_path, engine_socket):
    with bind_socket("127.0.0.1", 0) as bound:
        nothing = str(tmp_path / "no-such-folder")
        group = WorkerGroup(task_for(nothing, engine_socket, bound.fileno()))
        try:
            await group.start()
            with pytest.raises(ModelError, match="no-such-folder"):
                await group.wait_ready()
        finally:
            await group.close()
