"""Prompt log-probabilities equal those of `transformers`, and have the same bits in every
schedule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenDelta, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.runtime import CpuRuntime, start_runtime
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

BLOCK, ROWS, TOP = 16, 4, 3
WAYS = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "by twos": {"max_num_seqs": 2},
    "with speculation": {"speculative_algorithm": "ngram"},
    "without a prefix cache": {"enable_prefix_caching": False},
    "without a cache": {"no_kv_cache": True},
}


def settings(folder: Path, **options: object) -> EngineSettings:
    sizes: dict[str, object] = {
        "max_model_len": CONTEXT,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": CONTEXT,
        "block_size": BLOCK,
        "threads": 2,
        "dtype": "f32",
    }
    return EngineSettings(model=str(folder), **(sizes | options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("model") / "small-llama")


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Iterator[CpuRuntime]:
    loaded = start_runtime(files_at(folder, "small-llama"), settings(folder))
    yield loaded
    loaded.close()


def requests() -> list[TokenRequest]:
    """Requests of several lengths: some with a common prefix, some with penalties, one with
    max_tokens 0 and one without prompt log-probabilities."""
    random = np.random.default_rng(3)
    stem = random.integers(0, VOCAB, 40).tolist()
    penalized = Sampling(temperature=0.0, repetition_penalty=1.5, logit_bias={3: -50.0})
    made = []
    for index, length in enumerate((100, 7, 50, 1, 90, 33)):
        tail = random.integers(0, VOCAB, length).tolist()
        prompt = tuple((stem + tail)[:length] if index % 2 == 0 else tail)
        made.append(
            TokenRequest(
                id=f"r{index}",
                token_ids=prompt,
                sampling=penalized if index % 3 == 0 else Sampling(temperature=0.0),
                seed=index,
                max_tokens=0 if index == 4 else 5,
                top_logprobs=TOP,
                prompt_logprobs=None if index == 5 else index % 2 * TOP,
            )
        )
    return made


def run(core: EngineCore, asked: list[TokenRequest]) -> dict[str, tuple[list[TokenDelta], ...]]:
    """Return the tokens of each request's prompt and answer."""
    found: dict[str, tuple[list[TokenDelta], ...]] = {one.id: ([], []) for one in asked}
    for one in asked:
        core.submit(one)
    while core.has_work:
        for chunk in core.step():
            prompt, answer = found[chunk.id]
            assert not (chunk.prompt and answer), "the prompt comes first"
            prompt.extend(chunk.prompt)
            answer.extend(chunk.tokens)
            assert chunk.finish in (None, "length")
    return found


@pytest.fixture(scope="module")
def found_alone(runtime: CpuRuntime, folder: Path) -> dict[str, tuple[list[TokenDelta], ...]]:
    found = {}
    for one in requests():
        found |= run(
            EngineCore.for_runtime(runtime, settings(folder, enable_prefix_caching=False)), [one]
        )
    return found


def test_prompt_logprobs_equal_those_of_transformers(
    folder: Path, found_alone: dict[str, tuple[list[TokenDelta], ...]]
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for one in requests():
        prompt, answer = found_alone[one.id]
        assert len(answer) == one.max_tokens
        if one.prompt_logprobs is None:
            assert not prompt
            continue
        with torch.inference_mode():
            right = model(torch.tensor([one.token_ids])).logits[0].log_softmax(dim=-1)
        assert [token.token_id for token in prompt] == list(one.token_ids[1:])
        for place, token in enumerate(prompt):
            assert token.logprob == pytest.approx(float(right[place, token.token_id]), abs=2e-4)
            assert len(token.top) == one.prompt_logprobs
            best = right[place].topk(TOP)
            assert [value for _, value in token.top] == pytest.approx(
                best.values[: len(token.top)].tolist(), abs=2e-4
            )


@pytest.mark.parametrize("way", WAYS)
def test_prompt_logprobs_do_not_depend_on_the_schedule(
    runtime: CpuRuntime,
    folder: Path,
    found_alone: dict[str, tuple[list[TokenDelta], ...]],
    way: str,
) -> None:
    core = EngineCore.for_runtime(runtime, settings(folder, **WAYS[way]))
    assert run(core, requests()) == found_alone


def test_a_cached_prefix_is_scored_too(
    runtime: CpuRuntime, folder: Path, found_alone: dict[str, tuple[list[TokenDelta], ...]]
) -> None:
    core = EngineCore.for_runtime(runtime, settings(folder))
    run(core, requests())
    assert run(core, requests()) == found_alone
    assert core.gauges().prefix_cache_hits > 0
