"""min_tokens: no token that ends an answer is sampled before it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from grammar_engine import (
    VOCAB,
    Answer,
    compile_all,
    core_of,
    regex,
    request,
    run,
    start_gpu_model_on_cpu,
    start_model,
    tokenizer_and_vocabulary,
)
from msgspec.structs import replace

from penstock.dialog import Sampling
from penstock.engine.types import TokenRequest
from penstock.runtime import CpuRuntime
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.min_tokens import MinTokensBan, apply_min_tokens

TOKENIZER, VOCABULARY = tokenizer_and_vocabulary()
HALF = frozenset(range(0, VOCAB, 2))
"""So many tokens end an answer that one without a minimum is over after a few."""


@pytest.fixture(scope="module", params=[start_model, start_gpu_model_on_cpu])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuRuntime | GpuRuntime]:
    started = request.param(tmp_path_factory.mktemp("model") / "small")
    yield started
    started.close()


def at_least(id: str, min_tokens: int, **fields: object) -> TokenRequest:
    wanted = request(id, None, stop_token_ids=HALF, **fields)  # type: ignore[arg-type]
    return replace(wanted, min_tokens=min_tokens)


def answered(runtime: CpuRuntime | GpuRuntime, requests: list[TokenRequest]) -> dict[str, Answer]:
    """Return the answers of a separate engine, which leaves no step in flight."""
    core = core_of(runtime)
    core.set_tokenizer(VOCABULARY)
    compile_all(core, requests)
    answers = run(core, requests)
    while core.has_work:
        core.step()
    return answers


def test_no_answer_ends_before_min_tokens(runtime: CpuRuntime | GpuRuntime) -> None:
    requests = [at_least(f"r{seed}", 20, seed=seed) for seed in range(8)]
    answers = answered(runtime, requests)
    assert all(len(answer.tokens) >= 20 for answer in answers.values())
    assert not any(HALF & set(answer.tokens) for answer in answers.values())
    assert {answer.finish for answer in answers.values()} == {"stop"}
    free = answered(runtime, [replace(one, min_tokens=0) for one in requests])
    assert min(len(answer.tokens) for answer in free.values()) < 5


def test_max_tokens_below_min_tokens_ends_the_answer(runtime: CpuRuntime | GpuRuntime) -> None:
    answer = answered(runtime, [at_least("a", 50, max_tokens=7)])["a"]
    assert len(answer.tokens) == 7 and answer.finish == "length"


def test_an_answer_has_the_same_tokens_beside_others(runtime: CpuRuntime | GpuRuntime) -> None:
    mixed = [
        at_least("least", 30, seed=5),
        request("grammar", regex("(ab)+c"), seed=6),
        at_least("short", 3, seed=7),
        request("free", None, seed=8, max_tokens=40),
    ]
    together = answered(runtime, mixed)
    for one in mixed:
        assert answered(runtime, [one])[one.id].tokens == together[one.id].tokens


def test_a_grammar_may_end_before_min_tokens(runtime: CpuRuntime | GpuRuntime) -> None:
    answer = answered(runtime, [replace(request("a", regex("the thing")), min_tokens=90)])["a"]
    assert TOKENIZER.decode(answer.tokens) == "the thing" and answer.finish == "stop"


@pytest.mark.parametrize("speculation", [False, True])
def test_a_draft_does_not_end_an_answer_before_min_tokens(
    runtime: CpuRuntime | GpuRuntime, speculation: bool
) -> None:
    """A greedy answer repeats itself, and so does its draft, including the stop token."""
    free = replace(request("a", None, max_tokens=40), sampling=Sampling(temperature=0.0))
    repeated = answered(runtime, [free])["a"].tokens[-1]
    held = replace(free, stop_token_ids=frozenset({repeated}), min_tokens=25, max_tokens=60)
    core = core_of(runtime, speculative_algorithm="ngram" if speculation else "none")
    answer = run(core, [held])["a"]
    while core.has_work:
        core.step()
    assert len(answer.tokens) >= 25 and repeated not in answer.tokens


def bits_left_out(mask: np.ndarray, count: int) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:count] == 0).tolist()


def test_places_of_a_draft_with_suppressed_tokens_share_a_mask() -> None:
    held = MinTokensBan(np.array([3, 69, 500, -1], np.int32), until=6)
    rows = [None, held, held, held]
    found = apply_min_tokens(None, rows, np.array([4, 4, 5, 6]), 70)
    assert found is not None
    masks, mask_of = found
    assert mask_of.tolist() == [-1, 0, 0, -1]
    assert bits_left_out(masks[0], 70) == [3, 69]
    assert apply_min_tokens(None, rows, np.array([4, 6, 7, 8]), 70) is None


def test_suppressed_tokens_are_combined_with_a_token_mask() -> None:
    others = (np.array([[0b11010, 0, 0], [0b1000, 0, 0]], np.uint32), np.array([0, 1], np.int32))
    held = MinTokensBan(np.array([3], np.int32), 6)
    found = apply_min_tokens(others, [held, held], np.array([5, 6]), 70)
    assert found is not None
    masks, mask_of = found
    assert masks[mask_of].tolist() == [[0b10010, 0, 0], [0b1000, 0, 0]]


def test_token_masks_of_other_rows_are_unchanged() -> None:
    others = (np.array([[7, 0, 0]], np.uint32), np.array([0, -1, -1], np.int32))
    held = [
        None,
        MinTokensBan(np.array([3], np.int32), 6),
        MinTokensBan(np.array([4], np.int32), 6),
    ]
    found = apply_min_tokens(others, held, np.array([5, 5, 5]), 70)
    assert found is not None
    masks, mask_of = found
    assert mask_of.tolist() == [0, 1, 2]
    assert masks[0].tolist() == [7, 0, 0]
    assert [bits_left_out(mask, 70) for mask in masks[1:]] == [[3], [4]]
    assert apply_min_tokens(others, held, np.array([5, 6, 6]), 70) is others
