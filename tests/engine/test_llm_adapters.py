"""Adapters in embedded use: a real small model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock import LLM
from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import InvalidRequest, ModelError
from penstock.config import LoraSettings, LoraSource
from penstock.dialog import AdapterRevision, Sampling, Text
from penstock.dialog.fold import FailedRun
from tests.support.checkpoints.embedding_checkpoints import add_sentence_files
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.tiny_model import write_tiny_model

GREEDY = Sampling(temperature=0.0)
BYTES = 257


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "m"
    write_tiny_model(folder)
    write_small_llama(folder, vocab=BYTES)
    return str(folder)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, threads=1, max_num_seqs=4, lora=LoraSettings()) as loaded:
        yield loaded


def said(llm: LLM, adapter: str | AdapterRevision | None = None) -> str:
    (answer,) = llm.generate("hello", adapter=adapter, sampling=GREEDY, max_tokens=12)
    (part,) = answer.choices[0].parts
    assert isinstance(part, Text)
    if adapter is None:
        assert answer.adapter_revision is None
    else:
        assert answer.adapter_revision is not None
    return part.text


def test_adapter_is_loaded_used_replaced_and_unloaded(llm: LLM, tmp_path: Path) -> None:
    first = llm.load_adapter("style", write_adapter(tmp_path / "a", seed=1))
    plain, styled = said(llm), said(llm, "style")
    assert plain != styled and said(llm, AdapterRevision(first.revision)) == styled
    second = llm.load_adapter(
        "style",
        write_adapter(tmp_path / "b", seed=2),
        replace=True,
        expected_revision=first.revision,
    )
    assert llm.adapters() == (second,)
    assert said(llm, "style") not in (plain, styled)
    assert llm.unload_adapter("style") == second
    for gone in ("style", AdapterRevision(second.revision)):
        with pytest.raises(FailedRun) as refused:
            said(llm, gone)
        assert (refused.value.status, refused.value.code) == (400, "adapter_not_found")
    assert said(llm) == plain


def test_adapters_and_base_are_answered_together(llm: LLM, tmp_path: Path) -> None:
    for number in range(3):
        llm.load_adapter(f"a{number}", write_adapter(tmp_path / f"a{number}", seed=number))
    alone = [said(llm, name) for name in (None, "a0", "a1", "a2")]
    assert len(set(alone)) == 4
    assert [said(llm, name) for name in ("a2", None, "a0", "a1")] == [
        alone[i] for i in (3, 0, 1, 2)
    ]


def test_files_that_are_wrong_are_refused(llm: LLM, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", config={"use_dora": True})
    with pytest.raises(AdapterRefused, match="DoRA"):
        llm.load_adapter("style", folder)
    assert llm.adapters() == ()


def test_preloaded_adapters_are_there(model: str, tmp_path: Path, home: Path) -> None:
    source = LoraSource("style", str(write_adapter(tmp_path / "a")))
    with LLM(model, threads=1, lora=LoraSettings(preload=(source,))) as llm:
        assert [adapter.alias for adapter in llm.adapters()] == ["style"]
    assert not list((home / "adapters").iterdir())
    wrong = LoraSource("style", str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match="lora style"):
        LLM(model, threads=1, lora=LoraSettings(preload=(wrong,)))


def test_llm_without_runtime_says_so(model: str) -> None:
    with LLM(model, threads=1) as llm:
        assert llm.adapters() == ()
        with pytest.raises(AdapterRefused, match="no dynamic LoRA runtime"):
            llm.load_adapter("style", "/")
        with pytest.raises(FailedRun, match="no dynamic LoRA runtime"):
            said(llm, "style")


async def test_embeddings_are_made_with_adapters(tmp_path: Path) -> None:
    folder = add_sentence_files(write_small_llama(tmp_path / "embedder"))
    with LLM(str(folder), threads=1, lora=LoraSettings()) as embedder:
        loaded = embedder.load_adapter("style", write_adapter(tmp_path / "a", seed=1))
        plain, styled = embedder.embed("a b c"), embedder.embed("a b c", adapter="style")
        assert not np.array_equal(plain, styled)
        by_id = AdapterRevision(loaded.revision)
        assert np.array_equal(await embedder.aembed("a b c", adapter=by_id), styled)
        embedder.unload_adapter("style")
        with pytest.raises(InvalidRequest) as refused:
            embedder.embed("a b c", adapter="style")
        assert refused.value.code == "adapter_not_found"
