"""Rerankers give the logits of `transformers`, and pairs do not affect each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.embedding.embedder import Embedder
from penstock.models.embedding.rerankers import is_reranker, load_reranker
from penstock.models.hub.sources import files_at
from penstock.runtime.cpu.embedding import NativeEmbedding
from penstock.runtime.cpu.embedding_inputs import max_blocks, whole_sequences
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.reranker_checkpoints import (
    MODERN,
    ROBERTA,
    expected_logit,
    save_reranker,
    small_reranker,
)

PAIRS = [
    ([2, 17, 5, 60, 9, 44, 31, 8, 8, 12, 50, 7, 23, 15, 40, 33, 6, 19, 28, 61, 4, 10, 3], 5),
    ([2, 9, 3, 3], 3),
    ([2, 11, 12, 3, 9, 3], 4),
    (list(range(2, 62)), 30),
]
SEQUENCES = [tokens for tokens, _ in PAIRS]
STARTS = [start for _, start in PAIRS]
TOLERANCE = {"atol": 2e-5, "rtol": 2e-4}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert without token types": ("Bert", {"type_vocab_size": 1}),
    "roberta": ("Roberta", ROBERTA | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", ROBERTA | {"type_vocab_size": 1}),
    "mpnet": ("MPNet", {"max_position_embeddings": 82}),
    "modernbert, first token": ("ModernBert", MODERN),
    "modernbert, mean": ("ModernBert", MODERN | {"classifier_pooling": "mean"}),
    "modernbert with biases": (
        "ModernBert",
        MODERN | {"classifier_bias": True, "norm_bias": True, "attention_bias": True},
    ),
    "qwen3": ("Qwen3", {}),
    "qwen2": ("Qwen2", {}),
    "llama": ("Llama", {}),
    "phi3": ("Phi3", {}),
    "glm4": ("Glm4", {}),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, the logit of each pair) of one case."""
    name, options = CASES[request.param]
    model = small_reranker(name, **options)
    folder = save_reranker(tmp_path_factory.mktemp("model"), model)
    return folder, torch.stack([expected_logit(model, *pair) for pair in PAIRS])


def native(folder: Path, **settings: Any) -> NativeEmbedding:
    model = load_reranker(files_at(folder, "test"), "auto")
    return NativeEmbedding(model, 0, EngineSettings(threads=2, **settings))


def test_native_plan_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, expected = saved
    assert is_reranker(files_at(folder, "test"))
    runtime = native(folder)
    assert runtime.info.width == 1
    logits = torch.from_numpy(runtime.embed(SEQUENCES, (), STARTS).copy())
    torch.testing.assert_close(logits, expected, **TOLERANCE)
    assert expected.std() > 0.01, "the pairs differ enough to tell"


def test_reference_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, expected = saved
    model = load_reranker(files_at(folder, "test"), "auto")
    ops = ReferenceOps()
    embedder: Embedder[torch.Tensor] = Embedder(model, ops, max_model_len=80)
    pooled_token = "first" if model.pooler.pooling == "cls" else "last"
    spec: Any = model.spec
    offset = 80 if getattr(spec, "segments", 1) > 1 else 0
    inputs = whole_sequences(SEQUENCES, 16, pooled_token, (), STARTS, offset)
    given = {name: getattr(inputs, name) for name in StepInputs.__dataclass_fields__}
    tensors: StepInputs[torch.Tensor] = StepInputs(
        **{name: torch.from_numpy(x) for name, x in given.items() if x is not None}
    )
    blocks = max_blocks(len(inputs.tokens), len(SEQUENCES), 16)
    shape = (blocks, getattr(spec, "num_kv_heads", spec.num_heads))
    cache = LayerCache(
        torch.full((*shape, spec.head_dim, 16), float("nan")),
        torch.full((*shape, 16, spec.head_dim), float("nan")),
    )
    torch.testing.assert_close(embedder.forward(ops, tensors, cache), expected, **TOLERANCE)


def test_a_logit_has_the_same_bits_alone_and_in_any_batch(saved: Any) -> None:
    runtime = native(saved[0])
    together = runtime.embed(SEQUENCES, (), STARTS).copy()
    for index, (tokens, start) in enumerate(PAIRS):
        assert np.array_equal(runtime.embed([tokens], (), [start])[0], together[index])
    backwards = runtime.embed(SEQUENCES[::-1], (), STARTS[::-1])
    assert np.array_equal(backwards[::-1], together)
    assert np.array_equal(together, runtime.eager_embed(SEQUENCES, (), STARTS))


def test_token_types_tell_the_texts_of_a_pair_apart(tmp_path: Path) -> None:
    model = small_reranker("Bert")
    runtime = native(save_reranker(tmp_path, model))
    tokens = SEQUENCES[0]
    for start in (1, 5, len(tokens)):
        logit = torch.from_numpy(runtime.embed([tokens], (), [start])[0].copy())
        torch.testing.assert_close(logit, expected_logit(model, tokens, start), **TOLERANCE)
    assert np.array_equal(runtime.embed([tokens]), runtime.embed([tokens], (), [len(tokens)]))


def test_token_types_count_from_the_served_context(tmp_path: Path) -> None:
    model = small_reranker("Bert")
    runtime = native(save_reranker(tmp_path, model), max_model_len=40)
    tokens, start = SEQUENCES[0], STARTS[0]
    logit = torch.from_numpy(runtime.embed([tokens], (), [start])[0].copy())
    torch.testing.assert_close(logit, expected_logit(model, tokens, start), **TOLERANCE)


def test_a_body_in_half_precision_is_read_with_its_head(tmp_path: Path) -> None:
    model = small_reranker("XLMRoberta", **ROBERTA, type_vocab_size=1).half()
    folder = save_reranker(tmp_path, model)
    expected = torch.stack([expected_logit(model.float(), *pair) for pair in PAIRS])
    logits = torch.from_numpy(native(folder).embed(SEQUENCES, (), STARTS).copy())
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-3)


def test_a_classifier_is_recognized_whatever_files_are_beside_its_config(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_reranker("Bert"))
    assert is_reranker(files_at(folder, "test"))
    other = save_sentence_folder(tmp_path / "other", small_body("Bert"))
    assert not is_reranker(files_at(other, "test"))


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Qwen3"])
def test_several_labels_are_refused_by_the_tensor(tmp_path: Path, name: str) -> None:
    options = ROBERTA if name == "Roberta" else {}
    folder = save_reranker(tmp_path, small_reranker(name, num_labels=3, **options))
    tensor = {"Bert": "classifier", "Roberta": r"classifier\.out_proj", "Qwen3": "score"}[name]
    with pytest.raises(ModelError, match=rf"{tensor}\.weight has 3 labels; only rerankers"):
        load_reranker(files_at(folder, "test"), "auto")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("Bert", "bert.pooler.dense.weight"),
        ("Bert", "classifier.bias"),
        ("Roberta", "classifier.dense.bias"),
        ("ModernBert", "head.norm.weight"),
        ("ModernBert", "classifier.weight"),
        ("Qwen3", "score.weight"),
    ],
)
def test_a_missing_tensor_of_the_head_is_named(tmp_path: Path, name: str, tensor: str) -> None:
    options = {"Roberta": ROBERTA, "ModernBert": MODERN}.get(name, {})
    folder = save_reranker(tmp_path, small_reranker(name, **options))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors[tensor]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=f"tensor {tensor} is missing"):
        load_reranker(files_at(folder, "test"), "auto")


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Qwen3"])
def test_an_unexpected_tensor_is_named(tmp_path: Path, name: str) -> None:
    options = ROBERTA if name == "Roberta" else {}
    folder = save_reranker(tmp_path, small_reranker(name, **options))
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"classifier.extra.weight": torch.ones(1, 64)}, path)
    with pytest.raises(ModelError, match=r"unexpected tensor classifier\.extra\.weight"):
        load_reranker(files_at(folder, "test"), "auto")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier_activation": "relu"}, "classifier_activation 'relu' is not supported"),
        ({"classifier_pooling": "max"}, "classifier_pooling 'max' is not known"),
        ({"architectures": ["DebertaV2ForSequenceClassification"]}, "DebertaV2.* not supported"),
    ],
)
def test_unsupported_keys_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = save_reranker(tmp_path, small_reranker("ModernBert", **MODERN))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        load_reranker(files_at(folder, "test"), "auto")
