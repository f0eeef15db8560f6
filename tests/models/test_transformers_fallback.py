"""Architectures without a family run on transformers' modules with the paged KV cache."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from random_models import expected_logits, random_model
from safetensors.torch import load_file, save_file

from penstock.base.errors import ModelError
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.kernels.step_inputs import StepInputs
from penstock.models.hub.model_files import ModelFiles
from penstock.runtime.load import start_runtime
from tests.engine.scheduled_requests import Request, generate, scheduler_of

MODELS: dict[str, dict[str, Any]] = {
    "GPTNeoX": {"num_key_value_heads": 4},
    "Olmo": {},
    "Nemotron": {"head_dim": 16},
    "VaultGemma": {"head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 2.0},
}
STEM = tuple((7 * i) % 61 for i in range(1, 34))
REQUESTS = [
    Request((*STEM, *tail), 9, Sampling(temperature=0.0)) for tail in [(5, 11), (40,), (2, 3, 4)]
]
BLOCK = 16


def start(folder: Path, **options: Any) -> Any:
    settings = EngineSettings(
        model=str(folder), block_size=BLOCK, threads=1, **({"dtype": "f32"} | options)
    )
    return start_runtime(ModelFiles("m", "folder", folder), settings)


def inputs(tokens: list[list[int]], starts: list[int]) -> StepInputs[Any]:
    """Return a step with one row per list of tokens, which begins at its start."""
    lengths = [len(row) for row in tokens]
    positions = np.concatenate(
        [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
    )
    row_of = np.repeat(np.arange(len(tokens)), lengths)
    tables = np.array([[4 * row + 1, 4 * row] for row in range(len(tokens))], np.int32)
    slots = tables[row_of, positions // BLOCK] * BLOCK + positions % BLOCK
    return StepInputs(
        tokens=np.concatenate(tokens).astype(np.int32),
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        query_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        context_lens=np.add(starts, lengths).astype(np.int32),
        block_tables=tables,
        sample_rows=np.arange(sum(lengths), dtype=np.int32),
    )


@pytest.mark.parametrize("name", MODELS)
def test_chunks_batches_and_decoding_give_the_logits_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model = random_model(name, MODELS[name])
    model.save_pretrained(tmp_path)
    runtime = start(tmp_path)
    first, second = [3, 9, 4, 7, 5, 1, 8, 2, 6, 11, 12, 13, 14, 10, 3, 7, 9, 5], [5, 8, 1, 9, 2]
    backend = runtime._backend
    got = [backend.logits(inputs([first[:7], second[:3]], [0, 0]))]
    got.append(backend.logits(inputs([first[7:17], second[3:4]], [7, 3])))
    got.append(backend.logits(inputs([first[17:], second[4:]], [17, 4])))
    own = [expected_logits(model, row).numpy() for row in (first, second)]
    bounds = [((0, 7), (0, 3)), ((7, 17), (3, 4)), ((17, 18), (4, 5))]
    for step, ((a, b), (c, d)) in zip(got, bounds, strict=True):
        right = np.concatenate([own[0][a:b], own[1][c:d]])
        np.testing.assert_allclose(step, right, rtol=2e-3, atol=2e-3)
    runtime.close()


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        (
            {"model_type": "gpt_neox", "architectures": ["GPTNeoXForSequenceClassification"]},
            "GPTNeoXForSequenceClassification has no implementation here",
        ),
        ({"model_type": "olmo", "auto_map": {"AutoConfig": "code.C"}}, "auto_map names code"),
        (
            {"model_type": "olmo", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "OlmoForCausalLM .* rope_type is dynamic",
        ),
        (
            {"model_type": "recurrent_gemma", "architectures": ["RecurrentGemmaForCausalLM"]},
            "RecurrentGemmaForCausalLM .* recurrent layers|RecurrentGemmaForCausalLM .* type",
        ),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "recurrent layers"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5"),
        ({"model_type": "new", "auto_map": {"AutoConfig": "code.C"}}, "auto_map names code"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    keys: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ModelError, match=cause):
        start(tmp_path)


@pytest.mark.parametrize("name", ["Olmo", "VaultGemma"])
def test_chunks_and_a_prefix_hit_give_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    model = random_model(name, MODELS[name])
    model.save_pretrained(tmp_path)
    runtime = start(tmp_path, max_num_seqs=4)
    expected = [greedy(model, list(one.prompt), one.max_tokens) for one in REQUESTS]
    scheduler = scheduler_of(runtime, max_num_seqs=4, max_num_batched_tokens=23)
    for cached in (False, True):
        outcome = generate(runtime, scheduler, REQUESTS)
        assert [[token for token, *_ in answer] for answer in outcome.answers] == expected
        assert (min(outcome.cached_tokens) >= BLOCK) == cached
    runtime.close()


def test_preempted_sequences_give_the_tokens_of_transformers(tmp_path: Path) -> None:
    model = random_model("VaultGemma", MODELS["VaultGemma"])
    model.save_pretrained(tmp_path)
    runtime = start(tmp_path, max_num_seqs=4)
    requests = [Request(STEM[i : i + 10], 40, Sampling(temperature=0.0)) for i in range(3)]
    expected = [greedy(model, list(one.prompt), one.max_tokens) for one in requests]
    outcome = generate(runtime, scheduler_of(runtime, max_num_seqs=4, num_blocks=6), requests)
    assert [[token for token, *_ in answer] for answer in outcome.answers] == expected
    assert outcome.preemptions > 0
    runtime.close()


def test_accepted_and_rejected_drafts_change_no_token(tmp_path: Path) -> None:
    random_model("Olmo", {}).save_pretrained(tmp_path)
    runtime = start(tmp_path, max_num_seqs=4, speculative_algorithm="ngram")
    # Draws between two tokens, so that drafts are proposed, accepted and rejected.
    drawn = Sampling(temperature=1.0, logit_bias={3: 50.0, 5: 50.0})
    requests = [Request(tuple(range(20)), 40, drawn)]
    plain = scheduler_of(runtime, max_num_seqs=4, prefix_caching=False)
    expected = generate(runtime, plain, requests)
    scheduler = scheduler_of(runtime, max_num_seqs=4, speculation=True)
    for tokens in (1, 100):  # a token costs little, so that drafts pay
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    outcome = generate(runtime, scheduler, requests)
    assert [token for token, *_ in outcome.answers[0]] == [
        token for token, *_ in expected.answers[0]
    ]
    gauges = scheduler.gauges()
    assert gauges.draft_tokens > gauges.accepted_tokens > 0
    runtime.close()


def greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    """Return the `count` most likely tokens of transformers after `tokens`."""
    start = len(tokens)
    for _ in range(count):
        tokens = [*tokens, int(expected_logits(model, tokens)[-1].argmax())]
    return tokens[start:]


def test_the_log_says_that_the_model_runs_on_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random_model("Olmo", {}).save_pretrained(tmp_path)
    start(tmp_path).close()
    said = (
        "OlmoForCausalLM has no implementation of its own; it runs on the modules of transformers"
        f" {transformers.__version__}, which is slower"
    )
    assert said in caplog.messages


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra_the_refusal_names_it(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"model_type": "olmo", "architectures": ["OlmoForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModelError, match=r"OlmoForCausalLM is not supported.*penstock\[torch\]"):
        start(tmp_path)


def test_an_unknown_architecture_of_a_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "gptneox")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="gptneox is not supported"):
        start_runtime(ModelFiles("m", "gguf", path), EngineSettings(model=str(path)))


def test_missing_tensors_are_refused_by_name(tmp_path: Path) -> None:
    random_model("Olmo", {}).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"missing tensors: model.layers.1.mlp.up_proj.weight"):
        start(tmp_path)


def test_an_option_of_attention_that_is_not_known_is_refused(tmp_path: Path) -> None:
    random_model("Olmo", {}).save_pretrained(tmp_path)
    runtime = start(tmp_path)
    backend: Any = runtime._backend
    for options, cause in [
        ({"dropout": 0.0, "indices": torch.zeros(1)}, "attention with indices is not supported"),
        ({"dropout": 0.1}, "attention with dropout is not supported"),
        ({"attention_mask": torch.zeros(1)}, "attention with attention_mask is not supported"),
        ({"is_causal": False}, "attention that is not causal"),
    ]:
        with pytest.raises(ModelError, match=cause):
            backend.check_options(None, options)
    runtime.close()


def test_a_window_that_only_the_mask_contains_is_refused(tmp_path: Path) -> None:
    random_model("Olmo", {"sliding_window": 8}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="layers 0, 1, 2 do not pass it to attention"):
        start(tmp_path)


def test_settings_that_need_a_family_are_refused(tmp_path: Path) -> None:
    random_model("Olmo", {}).save_pretrained(tmp_path)
    refused: dict[str, dict[str, Any]] = {
        "quantization is": {"quantization": "int8", "dtype": "auto"},
        "LoRA adapters are": {"lora": LoraSettings()},
        "a GPU is": {"device": "cuda:0"},
        "tensor parallelism is": {"tensor_parallel_size": 2},
        "a draft model is": {"draft_model": "other"},
        "speculative_algorithm mtp is": {"speculative_algorithm": "mtp"},
    }
    for subject, options in refused.items():
        with pytest.raises(ModelError, match=f"{subject} not supported for OlmoForCausalLM"):
            start(tmp_path, **options)
    with pytest.raises(ModelError, match="kv_cache_dtype is int8; for a model of transformers"):
        start(tmp_path, kv_cache_dtype="int8")


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    model = random_model("Olmo", {})
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors only"):
        start(tmp_path)
