"""Rerankers in GGUF files, as llama.cpp's converter writes Qwen3-Reranker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_encoder_export import export_encoder
from gguf_export import export_gguf

from penstock.base.errors import ModelError
from penstock.llm import LLM
from penstock.models.embedding.rerankers import is_reranker, load_rerank_parts, load_reranker
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import is_embedding_model, load_embedder
from penstock.text.tokenizers.backend import build_backend
from penstock.text.tokenizers.pair_tokenizer import load_pair_tokenizer
from tests.support.checkpoints.embedding_checkpoints import small_body

TOKENS = ["<|pad|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]
YES, NO = 3, 4
TEMPLATE = "<|im_start|>b{query}a{document}<|im_end|>b"
KEYS = {
    "qwen3.pooling_type": 4,
    "qwen3.classifier.output_labels": ["yes", "no"],
    "tokenizer.chat_template.rerank": TEMPLATE,
}


def export(path: Path, **changes: Any) -> Any:
    """Write a file with two rows of the model's head, and return the model. `changes`: of the
    metadata."""
    model = small_body("Qwen3", "ForCausalLM", tie_word_embeddings=True)
    model.tie_weights()
    head = model.lm_head.weight.detach().numpy()[[YES, NO]]
    export_gguf(
        model,
        path,
        tokens=TOKENS,
        extra_tensors={"cls.output.weight": np.ascontiguousarray(head)},
        extra_keys=KEYS | changes,
    )
    return model


def test_a_score_is_the_probability_of_yes_after_the_template(tmp_path: Path) -> None:
    model = export(tmp_path / "m.gguf")
    assert is_reranker(files_at(tmp_path / "m.gguf", "test"))
    documents = ["ab", "bbba", ""]
    with LLM(str(tmp_path / "m.gguf"), threads=2) as llm:
        scores = {result.index: result.score for result in llm.rerank("ba", documents)}
    backend = build_backend(load_rerank_parts(files_at(tmp_path / "m.gguf", "m")).tokenizer)  # type: ignore[arg-type]
    for index, document in enumerate(documents):
        prompt = TEMPLATE.replace("{query}", "ba").replace("{document}", document)
        with torch.no_grad():
            logits = model(torch.tensor([backend.encode(prompt).ids])).logits[0, -1, [YES, NO]]
        assert scores[index] == pytest.approx(float(logits.softmax(0)[0]), abs=1e-5)
    assert len({round(score, 4) for score in scores.values()}) == 3


def test_tokens_may_span_the_seams_of_the_template(tmp_path: Path) -> None:
    export(tmp_path / "m.gguf")
    parts = load_rerank_parts(files_at(tmp_path / "m.gguf", "test"))
    pairs = load_pair_tokenizer(parts.tokenizer, parts.template)
    prefixes = pairs.prefixes("a", ["b", "ba"], 64)
    assert prefixes.token_ids == [[1, 4, 3, 5], [1, 4, 3, 5, 3]]  # <|im_start|> b a ab (a)
    assert pairs.end == [2, 4] and not pairs.typed
    assert pairs.prefixes("a" * 100, ["b"], 64).token_ids == ()


def test_a_long_document_is_cut_before_the_end_of_the_template(tmp_path: Path) -> None:
    export(tmp_path / "m.gguf")
    with LLM(str(tmp_path / "m.gguf"), threads=2) as llm:
        assert llm.rerank("ba", ["ba" * 5000]) == llm.rerank("ba", ["ba" * 73 + "b"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qwen3.classifier.output_labels": ["no", "yes"]}, r"output_labels \['no', 'yes'\]"),
        ({"tokenizer.chat_template.rerank": "{document} {query}"}, "must have {query} before"),
    ],
)
def test_other_heads_and_templates_are_refused_by_their_keys(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    export(tmp_path / "m.gguf", **changes)
    files = files_at(tmp_path / "m.gguf", "test")
    with pytest.raises(ModelError, match=message):
        load_reranker(files, "auto")
        load_rerank_parts(files)


def test_another_family_and_an_encoder_are_refused(tmp_path: Path) -> None:
    llama = small_body("Llama", "ForCausalLM")
    export_gguf(llama, tmp_path / "l.gguf", tokens=TOKENS, extra_keys={"llama.pooling_type": 4})
    with pytest.raises(ModelError, match="llama as a reranker is not supported"):
        load_reranker(files_at(tmp_path / "l.gguf", "test"), "auto")
    files = files_at(export_encoder(small_body("Bert"), tmp_path / "b.gguf", "rank"), "test")
    assert not is_reranker(files) and is_embedding_model(files)
    with pytest.raises(ModelError, match=r"bert\.pooling_type 4 is not supported"):
        load_embedder(files, "auto")


def test_a_file_without_the_rows_of_its_head_is_refused(tmp_path: Path) -> None:
    model = small_body("Qwen3", "ForCausalLM", tie_word_embeddings=True)
    export_gguf(model, tmp_path / "m.gguf", tokens=TOKENS, extra_keys=KEYS)
    with pytest.raises(ModelError, match=r"tensor cls\.output\.weight is missing"):
        load_reranker(files_at(tmp_path / "m.gguf", "test"), "auto")
