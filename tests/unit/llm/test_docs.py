"""The examples of docs/embedded.md run, over a scripted engine in place of a loaded model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.agent import AgentLoop, Runners
from penstock.agent.in_memory import MemoryApprovals, MemoryFiles
from penstock.agent.server_tools import ServerTools
from penstock.config import AgentSettings
from penstock.generation import Generator
from penstock.llm import LLM, EmbeddedModel
from penstock.models.hub.catalogue import EMBEDDING_MODEL
from tests.support.agent_loops import call, scripted_engine, scripted_generator
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.reranker_checkpoints import save_reranker, small_reranker
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine

PAGE = Path(__file__).resolve().parents[3] / "docs" / "embedded.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_sentence_folder(tmp_path_factory.mktemp("bert"), small_body("Bert")))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_reranker(tmp_path_factory.mktemp("reranker"), small_reranker("Bert")))


def scripted_llm(model: str = "", **settings: Any) -> LLM:
    async def close() -> None:
        pass

    async def start() -> EmbeddedModel:
        engine = ScriptedEngine([*b"a word", IM_END])
        loop = AgentLoop(Generator(engine, tiny_tokenizer(), tiny_template()))
        return EmbeddedModel(Runners(loop), 4, close)

    return LLM.from_embedded_model(start)


def scripted_llm_with_tools(model: str = "", *, agent: AgentSettings, **settings: Any) -> LLM:
    """Return an LLM with real tools whose model computes 2**100 with Python."""
    tools = ServerTools(agent, MemoryFiles(), MemoryApprovals())

    async def start() -> EmbeddedModel:
        await tools.start()
        code = call("service_execute_python", code="print(2**100)")
        generator = scripted_generator(scripted_engine([code, "It is large."]))
        return EmbeddedModel(Runners(AgentLoop(generator, tools=tools.provider)), 4, tools.close)

    return LLM.from_embedded_model(start)


@pytest.mark.parametrize("source", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(
    source: str,
    embedder: str,
    reranker: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    embeds, reranks = EMBEDDING_MODEL in source, ".rerank(" in source
    folder = embedder if embeds else reranker
    has_tools = "AgentSettings(" in source
    scripted = scripted_llm_with_tools if has_tools else scripted_llm
    substitute = (lambda _: LLM(folder)) if embeds or reranks else scripted
    monkeypatch.setattr(penstock, "LLM", substitute, raising=False)
    exec(compile(source, str(PAGE), "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    if embeds:
        assert -1 <= float(out) <= 1.001
    elif reranks:
        assert sorted(line.split()[0] for line in out.splitlines()) == ["0", "1"]
    elif has_tools:
        assert str(2**100) in out
    else:
        assert "a word" in out
