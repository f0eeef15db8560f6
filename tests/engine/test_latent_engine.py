"""A model with latent attention and shared experts behind the engine's parts: its answers do not
depend on how they were computed, and they are those of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import settings, start
from scheduled_requests import (
    Outcome,
    PlanAndCalls,
    Request,
    generate,
    poison,
    requests_over,
    row_table_of,
    scheduler_of,
)

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_folder import read_adapter
from penstock.base.errors import ModelError
from penstock.config import LoraSettings
from penstock.models.families.registry import spec_of_folder
from penstock.runtime import CpuRuntime
from penstock.runtime.memory import plan_memory
from tests.support.checkpoints.lora_adapters import PREFIX, write_adapter
from tests.support.checkpoints.small_latent import VOCAB, write_small_latent

WAYS: dict[str, dict[str, Any]] = {
    "chunked": {"max_num_batched_tokens": 5},
    "in larger chunks": {"max_num_batched_tokens": 50},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without a cache": {"no_kv_cache": True},
}
PROMPT = tuple(np.random.default_rng(7).integers(0, VOCAB, 24).tolist())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_latent(tmp_path_factory.mktemp("model") / "small-latent")


@pytest.fixture(scope="module", params=["auto", "f32"])
def native(request: pytest.FixtureRequest, base: Path) -> Iterator[CpuRuntime]:
    runtime = start(base, dtype=request.param, lora=None)
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def answers_alone(native: CpuRuntime) -> Outcome:
    answers = []
    for request in requests_over(VOCAB, 100):
        poison(native)
        answers += generate(native, scheduler_of(native, prefix_caching=False), [request]).answers
    return Outcome(answers, [], 0)


def test_an_8_bit_cache_is_refused_by_name(base: Path) -> None:
    with pytest.raises(ModelError, match="kv_cache_dtype is int8; for a model with latent atten"):
        start(base, lora=None, kv_cache_dtype="int8")


@pytest.mark.parametrize("way", WAYS)
def test_latent_attention_answers_the_same_in_every_way(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    outcome = generate(native, scheduler_of(native, **WAYS[way]), requests_over(VOCAB, 100))
    assert outcome.answers == answers_alone.answers


def test_the_plan_of_latent_attention_gives_the_bits_of_its_calls(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    both = PlanAndCalls(native._backend)
    runtime = CpuRuntime(row_table_of(native), both, native.info, "")
    poison(runtime)
    outcome = generate(
        runtime, scheduler_of(runtime, max_num_batched_tokens=50), requests_over(VOCAB, 100)
    )
    assert outcome.answers == answers_alone.answers
    assert both.steps > 20


def test_the_buffers_of_latent_attention_are_within_the_formula(native: CpuRuntime) -> None:
    spec = native._backend._decoder.spec  # type: ignore[attr-defined]
    plan = plan_memory(spec, native.info.weight_bytes, settings("", lora=None), None)
    assert native._backend.buffer_bytes <= plan.buffer_bytes


def test_the_cache_of_a_token_is_one_latent_and_one_rotated_part(native: CpuRuntime) -> None:
    spec = native._backend._decoder.spec  # type: ignore[attr-defined]
    assert {cache and cache.token_elements for cache in spec.caches} == {32 + 16 + 32}


def test_the_reference_answers_the_same_up_to_rounding(base: Path) -> None:
    greedy = [r for r in requests_over(VOCAB, 60) if r.sampling.temperature == 0]
    outcomes = []
    for kernels in ("native", "reference"):
        runtime = start(base, dtype="f32", kernel_backend=kernels, lora=None)
        outcomes.append(generate(runtime, scheduler_of(runtime, max_num_batched_tokens=40), greedy))
        runtime.close()
    for answer, right in zip(outcomes[0].answers, outcomes[1].answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in right]


def test_greedy_tokens_are_those_of_transformers_up_to_ties(base: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    runtime = start(base, dtype="f32", lora=None)
    greedy = requests_over(VOCAB, 100)[4]
    request = Request(PROMPT, 40, greedy.sampling)
    (answer,) = generate(runtime, scheduler_of(runtime), [request]).answers
    runtime.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    tokens = [token for token, _, _ in answer]
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert len(tokens) == 40
    assert (logits.max(dim=-1).values - chosen).max() < 1e-3


@pytest.mark.parametrize(
    ("leaf", "rows", "columns", "message"),
    [
        ("self_attn.kv_b_proj", 256, 32, "its matrix multiplies the queries and the results"),
        ("self_attn.q_proj", 160, 64, "layer 1 has no such linear layer"),
        ("self_attn.q_c_proj", 160, 64, "q_c_proj.* is not a LoRA factor of a layer of this model"),
        ("mlp.experts.up_proj", 96, 64, "an adapter for experts is not supported"),
        ("mlp.up_proj", 96, 64, "layer 1 is a mixture of experts"),
    ],
)
def test_an_adapter_that_latent_attention_or_experts_would_need_is_refused(
    base: Path, tmp_path: Path, leaf: str, rows: int, columns: int, message: str
) -> None:
    name = f"{PREFIX}layers.1.{leaf}"
    tensors = {
        f"{name}.lora_A.weight": np.ones((4, columns), np.float32),
        f"{name}.lora_B.weight": np.ones((rows, 4), np.float32),
    }
    config = {"target_modules": [leaf.rpartition(".")[2]]}
    folder = write_adapter(tmp_path / "adapter", tensors, config=config)
    with pytest.raises(AdapterRefused, match=message):
        read_adapter(folder, spec_of_folder(base), LoraSettings())
