"""Models whose last layers read the KV caches of others, behind the engine's parts: these layers
run for the sampled tokens alone, and no answer depends on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from lora_base_models import LORA, last_logits, settings, start
from scheduled_requests import (
    Outcome,
    generate,
    poison,
    requests_over,
    scheduler_of,
)

from penstock.adapters.peft_folder import read_adapter
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.kernels.step_inputs import StepInputs
from penstock.models.decoder.lora_targets import lora_blocks
from penstock.runtime import CpuRuntime
from penstock.runtime.cpu.native_tail import NativeTail
from penstock.scheduler import NO_ADAPTER
from tests.support.checkpoints.lora_adapters import PREFIX, write_adapter

VOCAB, LONGEST = 64, 60
SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "final_logit_softcapping": 3.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3n": (
        "Gemma3n",
        {
            "intermediate_size": [96, 96, 64, 64, 96, 96],
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.9, 0.6, 0.0, 0.0, 0.0, 0.0],
        },
    ),
    "gemma4": ("Gemma4", {"global_head_dim": 32, "use_double_wide_mlp": True}),
}
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "in larger chunks": {"max_num_batched_tokens": 23},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without a cache": {"no_kv_cache": True},
    "with n-gram drafts": {"speculation": True},
}
SLOTS = [0, 1, 0, NO_ADAPTER, 1, 0, NO_ADAPTER, 1, 0]
"""The adapter of each request of `requests_over`."""


def build(case: str) -> Any:
    """Return a model of `transformers` with random weights."""
    name, own = MODELS[case]
    config = getattr(transformers, f"{name}TextConfig")(**(SHARED | own))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


@pytest.fixture(scope="module", params=list(MODELS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model) of one case."""
    model = build(request.param)
    folder = tmp_path_factory.mktemp("model") / "model"
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module", params=["auto", "int8"])
def native(request: pytest.FixtureRequest, saved: Any) -> Iterator[CpuRuntime]:
    """A runtime with a float16 or an int8 cache, some of whose layers have windows."""
    runtime = start(saved[0], dtype="auto", lora=None, kv_cache_dtype=request.param)
    yield runtime
    runtime.close()


def computing_every_token(runtime: CpuRuntime, slots: list[int]) -> Outcome:
    """Return the answers if every layer computes every token, each request alone."""
    backend: Any = runtime._backend
    kept = backend._tail, backend._adapter_tail
    backend._tail = backend._adapter_tail = None
    answers = []
    for request, slot in zip(requests_over(VOCAB, LONGEST), slots, strict=True):
        poison(runtime)
        scheduler = scheduler_of(runtime, prefix_caching=False)
        answers += generate(runtime, scheduler, [request], [slot]).answers
    backend._tail, backend._adapter_tail = kept
    return Outcome(answers, [], 0)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens that were not sampled, in each step that ran as two plans."""
    counts: list[int] = []
    own = NativeTail.logits

    def logits(tail: NativeTail, inputs: StepInputs[Any]) -> Any:
        counts.append(len(inputs.tokens) - len(inputs.sample_rows))
        return own(tail, inputs)

    monkeypatch.setattr(NativeTail, "logits", logits)
    return counts


@pytest.fixture(scope="module")
def whole_answers(native: CpuRuntime) -> Outcome:
    return computing_every_token(native, [NO_ADAPTER] * 9)


@pytest.mark.parametrize("way", WAYS)
def test_answers_have_the_bits_of_a_model_that_computes_every_token(
    native: CpuRuntime, whole_answers: Outcome, way: str, gathered: list[int]
) -> None:
    poison(native)
    outcome = generate(native, scheduler_of(native, **WAYS[way]), requests_over(VOCAB, LONGEST))
    assert outcome.answers == whole_answers.answers
    assert len(gathered) > 1
    assert min(gathered) > 0


def test_a_cached_prefix_changes_no_answer(native: CpuRuntime, whole_answers: Outcome) -> None:
    poison(native)
    scheduler = scheduler_of(native)
    generate(native, scheduler, requests_over(VOCAB, LONGEST))
    again = generate(native, scheduler, requests_over(VOCAB, LONGEST))
    assert again.answers == whole_answers.answers
    assert max(again.cached_tokens) > 0


def test_the_reference_answers_the_same_up_to_rounding(saved: Any) -> None:
    greedy = [r for r in requests_over(VOCAB, LONGEST) if r.sampling.temperature == 0]
    outcomes = []
    for kernels in ("native", "reference"):
        runtime = start(saved[0], dtype="f32", kernel_backend=kernels, lora=None)
        outcomes.append(generate(runtime, scheduler_of(runtime, max_num_batched_tokens=40), greedy))
        runtime.close()
    for answer, right in zip(outcomes[0].answers, outcomes[1].answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in right]


@pytest.mark.parametrize("budget", [256, 7])
@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_prompt_logprobs_are_those_of_transformers(saved: Any, budget: int, kernels: str) -> None:
    folder, model = saved
    prompt = tuple(np.random.default_rng(4).integers(3, VOCAB, 45).tolist())
    options = {"max_num_batched_tokens": budget, "kernel_backend": kernels}
    runtime = start(folder, dtype="f32", lora=None, **options)
    core = EngineCore.for_runtime(runtime, settings(str(folder), dtype="f32", **options))
    core.submit(
        TokenRequest(
            id="r",
            token_ids=prompt,
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_tokens=1,
            top_logprobs=0,
            prompt_logprobs=0,
        )
    )
    found: list[float] = []
    while core.has_work:
        for output in core.step():
            found += [token.logprob for token in output.prompt]
    runtime.close()
    with torch.no_grad():
        scores = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = scores[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-3)


@pytest.fixture(scope="module")
def adapted(saved: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(runtime with two adapters on all layers, the models with the adapters merged)."""
    folder, model = saved
    runtime = start(folder, dtype="auto")
    assert runtime.adapters is not None
    blocks = lora_blocks(runtime.adapters.spec)
    merged = []
    for slot, rank in enumerate((4, 7)):
        one, factors = copy.deepcopy(model), {}
        random = np.random.default_rng(slot)
        modules = dict(one.model.layers.named_modules())
        for layer, block in enumerate(blocks):
            for name in block.targets.keys() & modules_of(modules, layer):
                weight = modules[f"{layer}.{name}"].weight
                a = random.standard_normal((rank, weight.shape[1])) / weight.shape[1] ** 0.5
                b = random.standard_normal((weight.shape[0], rank)) * 0.3
                module = f"{PREFIX}layers.{layer}.{name}"
                factors[f"{module}.lora_A.weight"] = a.astype(np.float32)
                factors[f"{module}.lora_B.weight"] = b.astype(np.float32)
                with torch.no_grad():
                    weight += torch.from_numpy((b @ a).astype(np.float32)) * 8 / rank
        assert {name.split(".")[4] for name in factors} == {str(i) for i in range(len(blocks))}
        path: Path = tmp_path_factory.mktemp("adapter") / str(slot)
        write_adapter(path, factors, config={"r": rank})
        adapter = read_adapter(path, runtime.adapters.spec, LORA)
        runtime.adapters.install(slot, runtime.adapters.pack(adapter))
        merged.append(one)
    yield runtime, merged
    runtime.close()


def modules_of(modules: dict[str, Any], layer: int) -> set[str]:
    """Return the names of the modules of a layer, without its own."""
    prefix = f"{layer}."
    return {name.removeprefix(prefix) for name in modules if name.startswith(prefix)}


@pytest.fixture(scope="module")
def whole_adapted_answers(adapted: Any) -> Outcome:
    return computing_every_token(adapted[0], SLOTS)


@pytest.mark.parametrize("way", ["batched", "chunked", "preempted and chunked"])
def test_adapters_change_the_layers_that_run_for_sampled_tokens(
    adapted: Any, whole_adapted_answers: Outcome, way: str, gathered: list[int]
) -> None:
    runtime, _ = adapted
    poison(runtime)
    asked = requests_over(VOCAB, LONGEST)
    outcome = generate(runtime, scheduler_of(runtime, **WAYS[way]), asked, SLOTS)
    assert outcome.answers == whole_adapted_answers.answers
    assert len(gathered) > 1


def test_adapted_prompts_have_the_logits_of_merged_weights(
    saved: Any, adapted: Any, gathered: list[int]
) -> None:
    runtime, merged = adapted
    models = {NO_ADAPTER: saved[1], 0: merged[0], 1: merged[1]}
    random = np.random.default_rng(5)
    prompts = [
        (tuple(random.integers(3, VOCAB, count).tolist()), slot)
        for count, slot in ((21, 0), (30, NO_ADAPTER), (9, 1), (33, 1), (4, 0))
    ]
    found = last_logits(runtime, prompts)
    with torch.no_grad():
        right = [models[slot](torch.tensor([tokens])).logits[0, -1] for tokens, slot in prompts]
    np.testing.assert_allclose(found, torch.stack(right).numpy(), atol=2e-2)
    assert gathered == [sum(len(tokens) - 1 for tokens, _ in prompts)]
