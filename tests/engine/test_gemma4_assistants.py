"""Assistants of Gemma 4 propose the tokens of transformers' modules, change no answer, and are
refused by name for models that they do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_base_models import start
from safetensors.torch import load_file, save_file
from scheduled_requests import Request, generate, requests_over, scheduler_of

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.runtime import CpuRuntime
from penstock.runtime.drafts.assistant import AssistantDrafter
from penstock.scheduler import Scheduler
from penstock.scheduler.ngram_speculation import NgramSpeculator
from tests.support.assistant_models import CASES, VOCAB, AssistedModel, assisted_model
from tests.support.checkpoints.small_llama import write_small_llama

GREEDY = Sampling(temperature=0.0)
PROMPTS = ((3, 17, 5, 60, 9, 44, 31), (8, 12, 50), (*range(10, 50),))


@dataclass
class Saved:
    model: AssistedModel
    target: Path
    assistant: Path


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model = assisted_model(request.param)
    return Saved(model, *model.save(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def no_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without n-gram lookup, all draft tokens come from the assistant."""
    monkeypatch.setattr(NgramSpeculator, "propose", lambda *arguments: ())


@pytest.fixture(scope="module")
def runtime(saved: Saved) -> Iterator[CpuRuntime]:
    started = start(saved.target, lora=None, dtype="f32", draft_model=str(saved.assistant))
    yield started
    started.close()


@pytest.fixture(scope="module", params=["f32", "int8"])
def cached(request: pytest.FixtureRequest, saved: Saved) -> Iterator[CpuRuntime]:
    """A runtime whose assistant reads a float32 or an int8 cache."""
    started = start(
        saved.target,
        lora=None,
        dtype="f32",
        draft_model=str(saved.assistant),
        kv_cache_dtype=request.param,
    )
    yield started
    started.close()


def speculating(runtime: CpuRuntime, **options: Any) -> Scheduler:
    """Return a scheduler for which a token costs a hundredth of a step's fixed second."""
    scheduler = scheduler_of(runtime, speculation=True, **options)
    for tokens in (1, 100):
        scheduler._planner.prefill_budget.observe(tokens, 1.0 + tokens / 100)
    return scheduler


class Recorder:
    """Records the proposals of a drafter, each with the known tokens before it."""

    def __init__(self, runtime: CpuRuntime) -> None:
        drafter: Any = runtime._drafter
        assert isinstance(drafter, AssistantDrafter)
        self.proposals: list[tuple[list[int], list[int]]] = []
        table, propose = drafter._rows, drafter.propose

        def recorded(*arguments: Any) -> Any:
            drafts = propose(*arguments)
            for draft in drafts:
                known = table.tokens_after(draft.row, -1, table.num_known(draft.row)).tolist()
                self.proposals.append((known, list(draft.token_ids)))
            return drafts

        drafter.propose = recorded


def check_proposals(model: AssistedModel, runtime: CpuRuntime, **options: Any) -> None:
    """Generate three answers at once, and compare all proposals with those of transformers."""
    recorder = Recorder(runtime)
    requests = [Request(prompt, 30, GREEDY) for prompt in PROMPTS]
    answers = generate(runtime, speculating(runtime, **options), requests).answers
    expected = generate(runtime, scheduler_of(runtime), requests).answers
    for one, other in zip(answers, expected, strict=True):
        assert [token for token, *_ in one] == [token for token, *_ in other]
    proposals = recorder.proposals
    assert len(proposals) > 20 and max(len(tokens) for _, tokens in proposals) > 2
    torch.set_num_threads(1)
    for known, tokens in proposals:
        assert tokens == model.drafts(known, len(tokens))


def test_proposals_are_those_of_transformers(saved: Saved, runtime: CpuRuntime) -> None:
    check_proposals(saved.model, runtime)
    check_proposals(saved.model, runtime, max_num_batched_tokens=9)


def test_the_reference_kernels_propose_the_same(saved: Saved) -> None:
    started = start(
        saved.target,
        lora=None,
        dtype="f32",
        draft_model=str(saved.assistant),
        kernel_backend="reference",
    )
    check_proposals(saved.model, started)
    started.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 21}, {"num_blocks": 10, "max_num_batched_tokens": 50}],
    ids=["batched", "chunked", "preempted"],
)
def test_drafts_change_no_answer(cached: CpuRuntime, options: dict[str, int]) -> None:
    requests = requests_over(VOCAB, 100)
    expected = generate(cached, scheduler_of(cached, prefix_caching=False), requests).answers
    scheduler = speculating(cached, **options)
    for _ in range(2):  # the second time with cached prefixes
        assert generate(cached, scheduler, requests).answers == expected
    gauges = scheduler.gauges()
    assert gauges.draft_model_draft_tokens > 0
    assert (gauges.preemptions > 0) == ("num_blocks" in options)


def test_the_assistant_is_in_the_memory_formula(saved: Saved, runtime: CpuRuntime) -> None:
    plain = start(saved.target, lora=None, dtype="f32", speculative_algorithm="ngram")
    tensors = load_file(saved.assistant / "model.safetensors")
    weights = sum(4 * values.numel() for values in tensors.values())
    more = runtime.info.memory_bytes - plain.info.memory_bytes
    assert more == weights + 4 * 64 * plain.info.max_model_len
    assert runtime.info.drafter == "draft_model"
    plain.close()


def test_a_quantized_assistant_drafts(saved: Saved) -> None:
    started = start(saved.target, lora=None, draft_model=str(saved.assistant), quantization="int8")
    scheduler = speculating(started)
    generate(started, scheduler, [Request(PROMPTS[0], 30, GREEDY)])
    assert scheduler.gauges().draft_model_draft_tokens > 0
    started.close()


def refusal(saved: Saved, assistant: Path, target: Path | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        start(target or saved.target, lora=None, draft_model=str(assistant))
    return str(caught.value)


@pytest.fixture
def plain(tmp_path: Path) -> Saved:
    model = assisted_model("31b")
    return Saved(model, *model.save(tmp_path))


def test_a_model_of_another_family_is_refused(plain: Saved, tmp_path: Path) -> None:
    llama = write_small_llama(tmp_path / "llama")
    message = refusal(plain, plain.assistant, llama)
    assert "Gemma4AssistantForCausalLM drafts only for gemma4" in message
    assert "the model is llama" in message


@pytest.mark.parametrize(
    ("changes", "inner", "message"),
    [
        ({"backbone_hidden_size": 48}, {}, "models of width 48, and the model's is 64"),
        ({}, {"vocab_size": 65}, "its vocabulary has 65 tokens, and the model's 64"),
        ({}, {"num_key_value_heads": 4}, "caches of 4 key-value heads of 16 elements"),
        (
            {},
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64},
            "hidden_size_per_layer_input",
        ),
        ({}, {"use_double_wide_mlp": True}, "use_double_wide_mlp"),
        ({"use_ordered_embeddings": True, "num_centroids": 7}, {}, "num_centroids 7"),
        ({"use_ordered_embeddings": True, "num_centroids": 32}, {}, "centroids.weight is missing"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    plain: Saved, changes: dict[str, Any], inner: dict[str, Any], message: str
) -> None:
    path = plain.assistant / "config.json"
    config = json.loads(path.read_text())
    config |= changes
    config["text_config"] |= inner
    path.write_text(json.dumps(config))
    assert message in refusal(plain, plain.assistant)


@pytest.mark.parametrize("part", ["pre_projection.", "model.layers.2.self_attn.q_norm."])
def test_a_missing_tensor_is_named(plain: Saved, part: str) -> None:
    path = plain.assistant / "model.safetensors"
    tensors = load_file(path)
    save_file({n: v for n, v in tensors.items() if not n.startswith(part)}, path)
    assert f"tensor {part}weight is missing" in refusal(plain, plain.assistant)


def test_an_ordering_that_repeats_a_token_is_refused(tmp_path: Path) -> None:
    model = assisted_model("e2b")
    saved = Saved(model, *model.save(tmp_path))
    path = saved.assistant / "model.safetensors"
    tensors = load_file(path)
    tensors["masked_embedding.token_ordering"][0] = tensors["masked_embedding.token_ordering"][1]
    save_file(tensors, path)
    assert "token_ordering: does not name every token once" in refusal(saved, saved.assistant)


def test_an_assistant_alone_is_refused(plain: Saved) -> None:
    with pytest.raises(ModelError, match="only drafts for a model: name it as draft_model"):
        start(plain.assistant, lora=None)
