"""Adapters of a decoder that is used as a reranker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.adapters.view import AdapterView
from penstock.agent import load_runners
from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import EmbeddingRequest, Ranking, RerankRequest
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.engine.local import LocalEngine
from penstock.models.hub.sources import files_at
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder
from tests.support.checkpoints.lora_adapters import ALL, write_adapter
from tests.support.checkpoints.reranker_checkpoints import save_reranker, small_reranker

SIZES = {"head_dim": 16, "num_hidden_layers": 2, "vocab_size": 200}  # as in `lora_folders`
REQUEST = RerankRequest("a b", ("c", "cat a"))


async def answered(folder: Path, root: Path, *requests: Any) -> list[Any]:
    """Return the answers of a model with the adapter `style` to each request."""
    settings = EngineSettings(model=str(folder), threads=2, lora=LoraSettings())
    engine = await LocalEngine.start(settings)
    live = AdapterView(limits=settings.lora)
    catalog = AdapterCatalog(
        LoraSettings(), root / "home", changed=lambda: live.apply(catalog.adapters)
    )
    catalog.attach(engine)
    try:
        runners = load_runners(files_at(folder, "m"), engine, adapters=live)
        await catalog.load(
            AdapterLoadRequest("style", str(write_adapter(root / "a", seed=0, targets=ALL)))
        )
        return [
            await (
                runners.must_rerank().rerank(request)
                if isinstance(request, RerankRequest)
                else runners.must_embed().embed(request)
            )
            for request in requests
        ]
    finally:
        await catalog.close()
        await engine.close()


async def test_scores_are_those_of_the_adapted_states(tmp_path: Path) -> None:
    model = small_reranker("Llama", **SIZES)
    styled = RerankRequest(REQUEST.query, REQUEST.documents, adapter="style")
    folder = save_reranker(tmp_path / "m", model)
    plain, adapted = await answered(folder, tmp_path, REQUEST, styled)
    assert plain.adapter_revision is None and adapted.adapter_revision
    body = save_sentence_folder(tmp_path / "body", model.model, "lasttoken", normalize=False)
    pairs = EmbeddingRequest(((2, 4, 5, 3, 6, 3), (2, 4, 5, 3, 32, 4, 3)), adapter="style")
    (states,) = await answered(body, tmp_path / "other", pairs)
    vectors = np.frombuffer(states.vectors, "<f4").reshape(2, -1)
    logits = vectors @ model.score.weight.detach().numpy()[0]
    assert scores(adapted) == pytest.approx(list(1 / (1 + np.exp(-logits))), abs=1e-5)
    assert scores(plain) != pytest.approx(scores(adapted), abs=1e-3)


async def test_an_unknown_adapter_is_refused(tmp_path: Path) -> None:
    folder = save_reranker(tmp_path / "m", small_reranker("Llama", **SIZES))
    other = RerankRequest(REQUEST.query, REQUEST.documents, adapter="other")
    with pytest.raises(InvalidRequest, match="other"):
        await answered(folder, tmp_path, other)


def scores(ranking: Ranking) -> list[float]:
    """Return the scores by the index of the document."""
    return [result.score for result in sorted(ranking.results, key=lambda r: r.index)]
