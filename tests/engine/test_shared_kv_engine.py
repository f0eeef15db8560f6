"""Models whose last layers read the KV caches of others, behind the engine's parts: these layers
run for the sampled tokens alone, and no answer depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from lora_base_models import settings, start
from scheduled_requests import (
    Outcome,
    generate,
    poison,
    requests_over,
    scheduler_of,
)

from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.kernels.step_inputs import StepInputs
from penstock.runtime import CpuRuntime
from penstock.runtime.cpu.native_tail import NativeTail

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


@pytest.fixture(scope="module")
def whole_answers(native: CpuRuntime) -> Outcome:
    """The answers if every layer computes every token, each request alone."""
    backend: Any = native._backend
    kept, backend._tail = backend._tail, None
    answers = []
    for request in requests_over(VOCAB, LONGEST):
        poison(native)
        answers += generate(native, scheduler_of(native, prefix_caching=False), [request]).answers
    backend._tail = kept
    return Outcome(answers, [], 0)


@pytest.mark.parametrize("way", WAYS)
def test_answers_have_the_bits_of_a_model_that_computes_every_token(
    native: CpuRuntime, whole_answers: Outcome, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = []
    own = NativeTail.logits

    def logits(tail: NativeTail, inputs: StepInputs[Any]) -> Any:
        gathered.append(len(inputs.tokens) - len(inputs.sample_rows))
        return own(tail, inputs)

    monkeypatch.setattr(NativeTail, "logits", logits)
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
