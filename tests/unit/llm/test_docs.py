"""The examples of docs/embedded.md run, over a scripted engine in place of a loaded model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.agent import AgentLoop, Runners
from penstock.generation import Generator
from penstock.llm import LLM, EmbeddedModel
from penstock.models.hub.catalogue import EMBEDDING_MODEL
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
    substitute = (lambda _: LLM(folder)) if embeds or reranks else scripted_llm
    monkeypatch.setattr(penstock, "LLM", substitute, raising=False)
    exec(compile(source, str(PAGE), "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    if embeds:
        assert -1 <= float(out) <= 1.001
    elif reranks:
        assert sorted(line.split()[0] for line in out.splitlines()) == ["0", "1"]
    else:
        assert "a word" in out
