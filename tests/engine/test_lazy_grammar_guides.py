"""Grammars that bind after a trigger mask nothing and cost nothing before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from grammar_engine import (
    Answer,
    compile_all,
    core_of,
    request,
    run,
    start_gpu_model_on_cpu,
    start_model,
    tokenizer_and_vocabulary,
)
from msgspec.structs import replace

from penstock.dialog import Constraint
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.grammar.compiler import serialize
from penstock.grammar.guides import LazyGrammarGuide
from penstock.grammar.trigger_matcher import TriggerMatcher
from penstock.grammar.types import Grammar, GrammarTriggers
from penstock.grammar.vocabulary import compile_grammar
from penstock.runtime import CpuRuntime
from tests.support.checkpoints.tiny_tokenizer import IM_END

TOKENIZER, VOCABULARY = tokenizer_and_vocabulary()
MARKS = "bkpqwz"
RULES = serialize(Constraint("lark", r"""
start: (call | odd)* /(.|\n)*/
call: z /[0-9]{3}/
odd: /(.|\n)*/ <[257]>
z[lazy]: /(.|\n)*[bkpqwz]/
"""))  # fmt: skip
AFTER_MARK = Grammar(RULES, GrammarTriggers(tuple(MARKS)))
NEVER = Grammar(RULES, GrammarTriggers(("this is never written",)))
SEEDS = range(8)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRuntime]:
    started = start_model(tmp_path_factory.mktemp("model") / "small")
    yield started
    started.close()


def with_tokenizer(core: EngineCore) -> EngineCore:
    core.set_tokenizer(VOCABULARY)
    return core


def seeded_request(grammar: Grammar | None, seed: int, **fields: object) -> TokenRequest:
    return replace(request(f"r{seed}", grammar, seed=seed, max_tokens=120), **fields)


def text(answer: Answer) -> bytes:
    return b"".join(map(TOKENIZER.token_bytes, answer.tokens))


def test_grammar_binds_after_the_trigger_and_changes_no_text_before_it(runtime: CpuRuntime) -> None:
    free = run(with_tokenizer(core_of(runtime)), [seeded_request(None, seed) for seed in SEEDS])
    bound = run(
        with_tokenizer(core_of(runtime)), [seeded_request(AFTER_MARK, seed) for seed in SEEDS]
    )
    marked = 0
    for name, answer in bound.items():
        match = re.search(b"[bkpqwz]", text(answer))
        assert text(free[name]).startswith(text(answer)[: match.end() if match else None])
        if match:
            marked += 1
            assert re.match(rb"[0-9]{3}|[0-9]{0,2}$", text(answer)[match.end() :])
        assert answer.finish in ("stop", "length")
    assert marked > 2


def test_answer_without_a_trigger_is_never_masked(runtime: CpuRuntime) -> None:
    core = with_tokenizer(core_of(runtime))
    free = run(with_tokenizer(core_of(runtime)), [seeded_request(None, seed) for seed in SEEDS])
    answers = run(core, [seeded_request(NEVER, seed) for seed in SEEDS])
    assert [a.tokens for a in answers.values()] == [a.tokens for a in free.values()]
    assert core.gauges().grammar_mask_seconds == 0


def test_batch_with_lazy_grammars_gives_the_same_answers_as_single_requests(
    runtime: CpuRuntime,
) -> None:
    every = [seeded_request(AFTER_MARK if seed % 2 else None, seed) for seed in SEEDS]
    alone = {}
    for one in every:
        alone |= run(with_tokenizer(core_of(runtime, enable_prefix_caching=False)), [one])
    core = with_tokenizer(core_of(runtime, max_num_batched_tokens=7))
    compile_all(core, every)
    assert {n: a.tokens for n, a in run(core, every).items()} == {
        n: a.tokens for n, a in alone.items()
    }


def test_min_tokens_applies_with_a_lazy_grammar(runtime: CpuRuntime) -> None:
    every = [seeded_request(AFTER_MARK, seed, min_tokens=40) for seed in SEEDS]
    answers = run(with_tokenizer(core_of(runtime)), every)
    assert all(len(answer.tokens) >= 40 for answer in answers.values())


def guide_of_z() -> LazyGrammarGuide:
    masker = VOCABULARY.grammar_tokenizer(TOKENIZER.vocab_size)
    triggers = TriggerMatcher(GrammarTriggers(tuple(MARKS)), TOKENIZER.token_bytes)
    return LazyGrammarGuide(compile_grammar(masker, RULES), triggers)


def test_draft_is_followed_up_to_the_trigger() -> None:
    guide = guide_of_z()
    assert guide.follow(list(b"xyv")) == 3
    assert guide.follow(list(b"xyzv")) == 2
    assert guide.idle and guide.bound is None
    for token in b"xyz":
        assert guide.accept(token)
    assert guide.bound is not None and not guide.idle
    assert guide.follow(list(b"1x")) == 1


def test_token_sampled_before_the_trigger_was_seen_does_not_end_the_answer() -> None:
    guide = guide_of_z()
    for token in b"xyz":
        guide.accept(token)
    assert guide.accept(ord("v"))
    assert guide.bound is None and guide.error is None and not guide.ended
    guide.accept(ord("z"))
    assert guide.bound is not None


def test_trigger_is_found_after_control_tokens() -> None:
    guide = guide_of_z()
    for token in (ord("x"), 256, ord("y"), ord("z")):
        guide.accept(token)
    assert guide.bound is not None
    assert IM_END in TOKENIZER.stop_ids


def test_steps_are_planned_ahead_until_the_trigger(tmp_path: Path) -> None:
    runtime = start_gpu_model_on_cpu(tmp_path / "small")
    try:
        free = run(with_tokenizer(core_of(runtime)), [seeded_request(None, seed) for seed in SEEDS])
        never = run(
            with_tokenizer(core_of(runtime)), [seeded_request(NEVER, seed) for seed in SEEDS]
        )
        assert [a.tokens for a in never.values()] == [a.tokens for a in free.values()]
        bound = run(
            with_tokenizer(core_of(runtime)), [seeded_request(AFTER_MARK, seed) for seed in SEEDS]
        )
        assert all(answer.finish in ("stop", "length") for answer in bound.values())
    finally:
        runtime.close()
