"""gpt-oss behind the engine's parts: sinks, windows and experts with biases give the same answers
however they are computed, and those of the reference and of `transformers`."""

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

from penstock.runtime import CpuRuntime
from penstock.runtime.memory import plan_memory
from tests.support.checkpoints.small_gpt_oss import (
    VOCAB,
    write_small_gpt_oss,
    write_small_gpt_oss_gguf,
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
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "mxfp4": write_small_gpt_oss(root / "mxfp4"),
        "floats": write_small_gpt_oss(root / "floats", "floats"),
        "gguf": write_small_gpt_oss_gguf(root / "m.gguf"),
    }


@pytest.fixture(
    scope="module",
    params=["mxfp4 auto auto", "gguf auto auto", "floats f32 auto", "mxfp4 auto int8"],
)
def native(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Iterator[CpuRuntime]:
    form, dtype, cache = request.param.split()
    runtime = start(paths[form], dtype=dtype, kv_cache_dtype=cache, lora=None)
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
def test_it_answers_the_same_in_every_way(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    outcome = generate(native, scheduler_of(native, **WAYS[way]), requests_over(VOCAB, 100))
    assert outcome.answers == answers_alone.answers


def test_its_plan_gives_the_bits_of_its_calls(native: CpuRuntime, answers_alone: Outcome) -> None:
    both = PlanAndCalls(native._backend)
    runtime = CpuRuntime(row_table_of(native), both, native.info, "")
    poison(runtime)
    outcome = generate(
        runtime, scheduler_of(runtime, max_num_batched_tokens=50), requests_over(VOCAB, 100)
    )
    assert outcome.answers == answers_alone.answers
    assert both.steps > 20


def test_what_it_takes_is_within_the_formula(native: CpuRuntime) -> None:
    spec = native._backend._decoder.spec  # type: ignore[attr-defined]
    plan = plan_memory(spec, native.info.weight_bytes, settings("", lora=None), None)
    assert native._backend.buffer_bytes <= plan.buffer_bytes


def test_greedy_tokens_are_those_of_the_reference(paths: dict[str, Path]) -> None:
    greedy = [r for r in requests_over(VOCAB, 20) if r.sampling.temperature == 0]
    outcomes = []
    for kernels in ("native", "reference"):
        runtime = start(paths["mxfp4"], dtype="f32", kernel_backend=kernels, lora=None)
        outcomes.append(generate(runtime, scheduler_of(runtime, max_num_batched_tokens=40), greedy))
        runtime.close()
    for answer, right in zip(outcomes[0].answers, outcomes[1].answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in right]


def chosen_below_the_best(path: Path, dtype: str, floats: Path) -> np.ndarray:
    """By how much the logit of each token that is answered is below the highest, as transformers
    computes them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    runtime = start(path, dtype=dtype, lora=None)
    greedy = requests_over(VOCAB, 100)[4]
    request = Request(PROMPT, 40, greedy.sampling)
    (answer,) = generate(runtime, scheduler_of(runtime), [request]).answers
    runtime.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        floats, attn_implementation="eager", dtype=torch.float32
    ).eval()
    tokens = [token for token, _, _ in answer]
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert len(tokens) == 40
    below: np.ndarray = (logits.max(dim=-1).values - chosen).numpy()
    return below


def test_greedy_tokens_are_those_of_transformers_up_to_ties(paths: dict[str, Path]) -> None:
    assert chosen_below_the_best(paths["mxfp4"], "f32", paths["floats"]).max() < 1e-3


@pytest.mark.parametrize("form", ["mxfp4", "gguf"])
def test_so_are_most_where_activations_are_rounded(paths: dict[str, Path], form: str) -> None:
    """Integer kernels round activations, which may select another expert, and so another token."""
    below = chosen_below_the_best(paths[form], "auto", paths["floats"])
    assert (below < 1e-3).mean() > 0.8
