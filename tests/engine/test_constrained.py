"""Answers match their grammar in every batch, and a faulty grammar fails only its own request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest
from grammar_engine import (
    Answer,
    compile_all,
    core_of,
    lark,
    regex,
    request,
    run,
    schema,
    start_model,
    tokenizer_and_vocabulary,
)

from penstock.base.errors import InvalidRequest
from penstock.engine.core import EngineCore
from penstock.grammar import cache as grammars_module
from penstock.grammar.cache import GrammarCache
from penstock.grammar.types import Grammar
from penstock.runtime import CpuRuntime
from tests.support.checkpoints.tiny_tokenizer import IM_END

# With no minimum, a sampled integer may have more digits than the answer has tokens.
SIZE = {"type": "integer", "minimum": -99, "maximum": 99}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["the thing", "other"]},
        "sizes": {"type": "array", "items": SIZE, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
SCHEMAS = [
    PERSON,
    {"type": "boolean"},
    {"type": "array", "items": {"enum": [1, "a", None]}, "minItems": 1, "maxItems": 4},
    {"anyOf": [{"const": "thing"}, {"type": "integer", "minimum": 10, "maximum": 20}]},
    {"type": "string", "pattern": "^[a-c]{2,6}$"},
]
REGEX = r"the (king|thing) is [0-9]{1,3} years"
TOKENIZER, VOCABULARY = tokenizer_and_vocabulary()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRuntime]:
    started = start_model(tmp_path_factory.mktemp("model") / "small")
    yield started
    started.close()


@pytest.fixture
def core(runtime: CpuRuntime) -> EngineCore:
    return with_tokenizer(core_of(runtime))


def with_tokenizer(core: EngineCore) -> EngineCore:
    core.set_tokenizer(VOCABULARY)
    return core


def text(answer: Answer) -> str:
    return TOKENIZER.decode(answer.tokens)


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_answers_match_their_schema(core: EngineCore, index: int) -> None:
    grammar = schema(SCHEMAS[index])
    answers = run(core, [request(f"r{seed}", grammar, seed=seed) for seed in range(12)])
    for answer in answers.values():
        assert answer.finish == "stop"
        jsonschema.validate(json.loads(text(answer)), SCHEMAS[index])


def test_integers_without_a_minimum_do_not_exceed_the_maximum(core: EngineCore) -> None:
    grammar = schema({"type": "integer", "maximum": 99})
    answers = run(core, [request(f"r{seed}", grammar, seed=seed) for seed in range(12)])
    ended = [answer for answer in answers.values() if answer.finish == "stop"]
    assert ended and all(int(text(answer)) <= 99 for answer in ended)
    # The others ran out of tokens, within a negative number of many digits.
    others = [answer for answer in answers.values() if answer.finish != "stop"]
    assert all(re.fullmatch(r"-[0-9]*", text(answer)) for answer in others)


def test_answer_matches_the_whole_regular_expression(core: EngineCore) -> None:
    answers = run(core, [request(f"r{seed}", regex(REGEX), seed=seed) for seed in range(12)])
    assert all(re.fullmatch(REGEX, text(answer)) for answer in answers.values())
    assert len({text(answer) for answer in answers.values()}) > 4


def test_end_of_the_grammar_ends_an_answer_that_ignores_stop_tokens(
    core: EngineCore,
) -> None:
    ignoring = request("a", regex("(ab)+"), stop_token_ids=frozenset(), max_tokens=90)
    fixed = request("b", regex("abc"), stop_token_ids=frozenset())
    answers = run(core, [ignoring, fixed])
    assert re.fullmatch("(ab)+", text(answers["a"]))
    assert IM_END not in answers["a"].tokens
    assert text(answers["b"]) == "abc" and answers["b"].finish == "stop"


def test_forced_text_is_tokenized_like_other_text(core: EngineCore) -> None:
    sentence = "the thing in the inn"
    answer = run(core, [request("a", regex(f"{sentence}!"))])["a"]
    assert answer.tokens == TOKENIZER.encode(f"{sentence}!")
    assert core.gauges().forced_tokens >= len(answer.tokens) - 2
    assert answer.chunks <= 2


def test_tokens_are_not_forced_across_a_choice_inside_a_word(core: EngineCore) -> None:
    """After "th" the tokenizer has "the" as one token: the token boundary must not be forced."""
    answers = run(core, [request(f"r{i}", regex("th(e|ing)"), seed=i) for i in range(12)])
    assert {text(answer) for answer in answers.values()} == {"the", "thing"}


def test_forced_tokens_have_log_probabilities(core: EngineCore) -> None:
    core.submit(request("a", schema(PERSON), top_logprobs=2))
    deltas = []
    while not deltas or deltas[-1].finish is None:
        deltas += core.step()
    tokens = [token for chunk in deltas for token in chunk.tokens]
    assert tokens and all(token.logprob is not None for token in tokens)


def mixed() -> list:
    return [
        request("free0", None, seed=1, max_tokens=40),
        request("json", schema(PERSON), seed=2),
        request("free1", None, seed=3, max_tokens=60, prompt=tuple(range(60, 100))),
        request("regex", regex(REGEX), seed=4),
        request("same", schema(PERSON), seed=2),
    ]


@pytest.fixture(scope="module")
def alone(runtime: CpuRuntime) -> dict[str, list[int]]:
    answers: dict[str, Answer] = {}
    for one in mixed():
        answers |= run(with_tokenizer(core_of(runtime, enable_prefix_caching=False)), [one])
    return {id: answer.tokens for id, answer in answers.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"num_blocks": 10, "enable_prefix_caching": False},
        {"no_kv_cache": True},
        {"max_num_seqs": 2},
    ],
    ids=["batched", "chunked", "preempted", "without a cache", "by twos"],
)
def test_mixed_batch_gives_the_same_answers_as_single_requests(
    runtime: CpuRuntime, alone: dict[str, list[int]], options: dict[str, int]
) -> None:
    core = with_tokenizer(core_of(runtime, **options))
    compile_all(core, mixed())
    answers = run(core, mixed())
    assert {id: answer.tokens for id, answer in answers.items()} == alone
    assert alone["json"] == alone["same"]
    assert ("num_blocks" in options) == (core.gauges().preemptions > 0)


def test_invalid_grammar_fails_only_its_request(core: EngineCore) -> None:
    bad = Grammar('{"grammars": [{"lark_grammar": "start: ("}]}')
    answers = run(core, [request("bad", bad), request("good", schema(PERSON)), *mixed()[:1]])
    assert answers["bad"].finish == "error"
    assert "grammar cannot be used" in (answers["bad"].error or "")
    assert answers["good"].finish == "stop"
    assert core.gauges().grammars_refused == 1


class Panic(BaseException):
    """The library raises a BaseException for an internal defect."""


@pytest.mark.parametrize("defect", [RuntimeError, Panic])
def test_compiler_defect_fails_only_its_request(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, defect: type[BaseException]
) -> None:
    def broken(*_: object) -> None:
        raise defect("defect")

    monkeypatch.setattr(grammars_module, "compile_grammar", broken)
    answers = run(core, [request("bad", schema(PERSON)), *mixed()[:1]])
    assert (answers["bad"].finish, answers["bad"].error) == ("error", "defect")
    assert answers["free0"].finish in ("stop", "length")


def test_grammar_over_the_lexer_limits_fails_only_its_request(core: EngineCore) -> None:
    many = " | ".join(f'"{word}x" /[a-z]*/' for word in range(2500))
    outgrowing = lark(f"start: A many\nA: /[a-b]{{3}}/\nmany: {many}")
    answers = run(core, [request("bad", outgrowing), request("good", schema(PERSON))])
    assert answers["bad"].finish == "error"
    assert "too complex" in (answers["bad"].error or "")
    assert answers["good"].finish == "stop"


def test_aborted_request_does_not_start_when_its_grammar_is_ready(core: EngineCore) -> None:
    core.submit(request("gone", schema(PERSON)))
    core.abort("gone")
    answers = run(core, [request("good", schema(PERSON))])
    assert answers["good"].finish == "stop"
    assert not core.has_work
    assert core.gauges().sequences_waiting == 0


def test_engine_without_a_vocabulary_refuses_a_constraint(runtime: CpuRuntime) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        core_of(runtime).submit(request("a", schema(PERSON)))


def test_grammar_is_compiled_once_for_all_requests(core: EngineCore) -> None:
    run(core, [request(f"r{i}", schema(PERSON)) for i in range(5)])
    run(core, [request("again", schema(PERSON))])
    gauges = core.gauges()
    assert gauges.grammars_compiled == 1
    assert gauges.grammars_reused == 5
    assert gauges.grammar_compile_seconds > 0
    assert gauges.grammar_mask_seconds > 0


def test_cache_evicts_grammars_over_its_size() -> None:
    grammars = GrammarCache(269, cache_bytes=180_000)
    grammars.set_tokenizer(VOCABULARY)
    first = grammars.compile(regex("a+"))
    for count in range(1, 5):
        grammars.compile(regex(f"a{{{count}}}")).result(30)
    assert grammars.compile(regex("a{4}")).done()
    assert grammars.reused == 1
    assert grammars.compile(regex("a+")) is not first
    grammars.close()
