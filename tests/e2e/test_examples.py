"""Every file of examples/ runs as its head says, against a real server or in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import RunningServer
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.lora_adapters import PREFIX, write_adapter
from tests.support.checkpoints.reranker_checkpoints import save_reranker, small_reranker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.slow


def run(name: str, *arguments: str) -> str:
    """Run an example to its end; its standard output."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stdout


@pytest.mark.parametrize(
    "name", ["chat.py", "streaming.py", "tools.py", "schema.py", "messages.py"]
)
def test_an_example_of_the_default_model_runs(server: RunningServer, name: str) -> None:
    run(name, server.url)


def test_every_example_is_run_by_a_test_and_listed_in_the_index() -> None:
    tested = Path(__file__).read_text()
    index = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in tested and f"({path.name})" in index


def test_the_agent_example_runs(start_server: Callable[..., RunningServer]) -> None:
    url = start_server("--enable-code-execution").url
    assert run("agent.py", url).splitlines()[-1] in ("status: completed", "status: incomplete")


def test_the_embeddings_example_runs(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    folder = save_sentence_folder(tmp_path / "bert", small_body("Bert"))
    assert len(run("embeddings.py", start_server(str(folder)).url).splitlines()) == 2


def test_the_reranking_example_runs(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    folder = save_reranker(tmp_path / "reranker", small_reranker("Bert"))
    assert len(run("reranking.py", start_server(str(folder)).url).splitlines()) == 2


def test_the_embedded_example_runs(default_model: Path) -> None:
    assert "The capital of France is ->" in run("embedded.py")


def test_the_lora_example_runs(
    start_server: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_ALLOW_RUNTIME_LORA_UPDATING", "1")
    monkeypatch.setenv("SERVICE_LORA_ADAPTER_ROOT", str(tmp_path))
    hidden_size = 576  # of SmolLM2-135M, whose q_proj is square
    name = f"{PREFIX}layers.0.self_attn.q_proj.lora"
    factors = {
        f"{name}_A.weight": np.ones((4, hidden_size), np.float32),
        f"{name}_B.weight": np.zeros((hidden_size, 4), np.float32),
    }
    write_adapter(tmp_path / "sql", factors, rank=4, targets=["q_proj"])
    run("lora.py", start_server("--enable-lora").url, "sql")
