"""Text towers of CLIP and SigLIP give the vectors of `transformers`, for the texts that its
tokenizers write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.sources import files_at
from penstock.models.loader.text_tower import (
    has_text_tower,
    load_text_tower,
    load_text_tower_parts,
)
from penstock.runtime.load import start_embedding
from penstock.text.tokenizers.embedding_tokenizer import load_embedding_tokenizer
from tests.support.text_towers import (
    TEXTS,
    clip_tokenizer,
    gemma_tokenizer,
    sentence_pieces,
    text_vector,
    write_clip,
    write_fixed_siglip2,
    write_siglip,
    write_siglip2,
)

LENGTH = 60


CLEANED = {
    "a cat": "a cat",
    "A Cat, a dog!": "a cat a dog",
    "  two   cats\non a mat  ": "two cats on a mat",
    "!?": "",
    "it's the dog's day " * 2: "its the dogs day its the dogs day",
}
"""Texts as `canonicalize_text` of SiglipTokenizer writes them, which needs sentencepiece."""


def siglip_ids(text: str) -> list[int]:
    tokenizer = sentence_pieces()
    tokenizer.enable_padding(length=LENGTH, pad_id=1, pad_token="</s>")
    ids: list[int] = tokenizer.encode(CLEANED[text]).ids
    return ids


def clip_ids(text: str) -> list[int]:
    """Return the token ids up to the first end token, whose state is the vector."""
    tokenizer = clip_tokenizer()
    ids: list[int] = tokenizer(text, padding="max_length", max_length=LENGTH).input_ids
    return ids[: ids.index(tokenizer.eos_token_id) + 1]


def gemma_ids(text: str) -> list[int]:
    ids: list[int] = gemma_tokenizer()(text, padding="max_length", max_length=LENGTH).input_ids
    return ids


def fixed_gemma_ids(text: str) -> list[int]:
    tokenizer = gemma_tokenizer()
    ids: list[int] = tokenizer(
        text, padding="max_length", max_length=LENGTH, padding_side="right"
    ).input_ids
    return ids


def gelu_clip(folder: Path) -> Any:
    return write_clip(folder, "gelu")


CASES: dict[str, tuple[Callable[[Path], Any], Callable[[str], list[int]]]] = {
    "CLIP": (write_clip, clip_ids),
    "CLIP with gelu": (gelu_clip, clip_ids),
    "SigLIP": (write_siglip, siglip_ids),
    "SigLIP 2": (write_siglip2, gemma_ids),
    "SigLIP 2 with images of fixed size": (write_fixed_siglip2, fixed_gemma_ids),
}


@pytest.fixture(scope="module", params=CASES, ids=str)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, the tokenizer of transformers)."""
    write, ids = CASES[request.param]
    folder = tmp_path_factory.mktemp("model")
    return folder, write(folder), ids


def test_texts_have_the_tokens_of_transformers(saved: Any) -> None:
    folder, _, ids = saved
    tokenizer = load_embedding_tokenizer(load_text_tower_parts(files_at(folder, "m")).tokenizer)
    for text, encoded in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert list(tokenizer.completed(tuple(encoded))) == ids(text)


def test_vectors_of_texts_are_those_of_transformers(saved: Any) -> None:
    folder, model, ids = saved
    sequences = [ids(text) for text in TEXTS]
    runtime = start_embedding(files_at(folder, "m"), EngineSettings(model="m", threads=2))
    try:
        together = runtime.embed(sequences).copy()
        alone = [runtime.embed([sequence])[0].copy() for sequence in sequences]
    finally:
        runtime.close()
    for sequence, vector, other in zip(sequences, together, alone, strict=True):
        expected = text_vector(model, sequence).numpy()
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=2e-5)
        assert np.array_equal(vector, other)


def test_a_folder_without_a_tokenizer_embeds_images_only(tmp_path: Path) -> None:
    write_clip(tmp_path)
    assert has_text_tower(files_at(tmp_path, "m"))
    (tmp_path / "tokenizer.json").unlink()
    files = files_at(tmp_path, "m")
    assert not has_text_tower(files)
    runtime = start_embedding(files, EngineSettings(model="m", threads=2))
    assert runtime.info.vocab_size == 0
    runtime.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, "text_config: hidden_act 'relu' is not supported"),
        ({"num_attention_heads": 5}, "width 48 cannot be divided among 5 heads"),
        ({"vocab_size": 65}, "text_model.embeddings.token_embedding.weight has shape"),
        ({"projection_size": 31}, "text_model.head.weight has shape"),
        ({"projection_size": 0}, "the width of embeddings must be positive, not 0"),
    ],
)
def test_faults_of_a_text_tower_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_siglip(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= change
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_text_tower(files_at(tmp_path, "m"), "auto")


def test_a_missing_token_of_padding_is_named(tmp_path: Path) -> None:
    write_siglip(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    source = load_text_tower_parts(files_at(tmp_path, "m")).tokenizer
    with pytest.raises(ModelError, match="has no token '<pad>'"):
        load_embedding_tokenizer(source)
