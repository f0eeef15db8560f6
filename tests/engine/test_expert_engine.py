"""A mixture of experts behind the engine's parts: its answers do not depend on how they were
computed, they are those of the reference, and its attention takes adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import last_logits, settings, start, write_merged
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

from penstock.adapters.adapter import Adapter
from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_folder import read_adapter
from penstock.config import LoraSettings
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.runtime import CpuRuntime
from penstock.runtime.memory import plan_memory
from penstock.scheduler import NO_ADAPTER
from tests.support.checkpoints.lora_adapters import PREFIX, write_adapter
from tests.support.checkpoints.small_moe import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    write_small_experts,
)

WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "in larger chunks": {"max_num_batched_tokens": 50},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without a cache": {"no_kv_cache": True},
}
PROMPT = tuple(np.random.default_rng(7).integers(0, VOCAB, 24).tolist())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_experts(tmp_path_factory.mktemp("model") / "small-experts")


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


@pytest.mark.parametrize("way", WAYS)
def test_a_mixture_answers_the_same_in_every_way(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    outcome = generate(native, scheduler_of(native, **WAYS[way]), requests_over(VOCAB, 100))
    assert outcome.answers == answers_alone.answers


def test_the_plan_of_a_mixture_gives_the_bits_of_its_calls(
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


def test_what_a_mixture_takes_is_within_the_formula(native: CpuRuntime) -> None:
    spec = native._backend._decoder.spec  # type: ignore[attr-defined]
    plan = plan_memory(spec, native.info.weight_bytes, settings("", lora=None), None)
    assert native._backend.buffer_bytes <= plan.buffer_bytes
    without = replace(spec, layers=(LayerSpec(),) * LAYERS)
    assert plan.buffer_bytes > 1.2 * plan_memory(without, 0, settings(""), None).buffer_bytes


def test_the_reference_answers_a_mixture_the_same_up_to_rounding(base: Path) -> None:
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


def attention_adapter(folder: Path, spec: DecoderSpec) -> Adapter:
    sizes = {
        "q_proj": (HEADS * HEAD_DIM, WIDTH),
        "v_proj": (KV_HEADS * HEAD_DIM, WIDTH),
        "o_proj": (WIDTH, HEADS * HEAD_DIM),
    }
    random = np.random.default_rng(2)
    tensors = {}
    for layer in range(LAYERS):
        for leaf, (rows, columns) in sizes.items():
            name = f"{PREFIX}layers.{layer}.self_attn.{leaf}"
            a = random.standard_normal((4, columns)) / columns**0.5
            b = random.standard_normal((rows, 4)) / 2
            tensors[f"{name}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = b.astype(np.float32)
    config = {"target_modules": list(sizes)}
    return read_adapter(write_adapter(folder, tensors, config=config), spec, LoraSettings())


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 5e-5), ("auto", 2e-2)])
def test_an_adapter_of_attention_gives_the_logits_of_merged_weights(
    base: Path, tmp_path: Path, dtype: str, bound: float
) -> None:
    runtime = start(base, dtype=dtype)
    assert runtime.adapters is not None
    adapter = attention_adapter(tmp_path / "adapter", runtime.adapters.spec)
    runtime.adapters.install(1, runtime.adapters.pack(adapter))
    bare, adapted = last_logits(runtime, [(PROMPT, NO_ADAPTER), (PROMPT, 1)])
    merged = write_merged(base, adapter, tmp_path / "merged")
    truth = last_logits(start(merged, dtype="f32", lora=None), [(PROMPT, NO_ADAPTER)])[0]
    scale = np.abs(truth).max()
    assert np.abs(adapted - truth).max() < bound * scale
    assert np.abs(bare - truth).max() > 0.1 * scale, "the adapter must matter"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("layers.0.mlp.experts.1.up_proj", "an adapter for experts is not supported"),
        ("layers.0.mlp.gate", "an adapter for the router is not supported"),
        ("layers.0.mlp.up_proj", "layer 0 is a mixture of experts"),
        ("layers.0.block_sparse_moe.experts.1.w1", "an adapter for experts is not supported"),
    ],
)
def test_an_adapter_of_experts_is_refused_by_name(
    base: Path, tmp_path: Path, module: str, message: str
) -> None:
    runtime = start(base)
    assert runtime.adapters is not None
    tensors = {
        f"{PREFIX}{module}.lora_A.weight": np.ones((4, WIDTH), np.float32),
        f"{PREFIX}{module}.lora_B.weight": np.ones((32, 4), np.float32),
    }
    folder = write_adapter(
        tmp_path / "a", tensors, config={"target_modules": [module.rpartition(".")[2]]}
    )
    with pytest.raises(AdapterRefused, match=message):
        read_adapter(folder, runtime.adapters.spec, LoraSettings())
    runtime.close()
