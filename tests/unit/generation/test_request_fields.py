"""The fields that a request may set, and with which templates."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_generator import HI, TOKENIZER, answer_of, events_of, ids, run, text

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Constraint,
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    Sampling,
    Text,
    ToolPolicy,
)
from penstock.dialog.fold import fold
from penstock.generation import Generator
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.text import ChatTemplate
from tests.support.checkpoints.tiny_tokenizer import CHATML, tiny_data
from tests.support.dry_sequence_breakers import sequences_of
from tests.support.scripted_engine import INFO, ScriptedEngine

TOOLS = (FunctionTool("f"),)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("messages", {"messages": None}),
        ("messages", {"messages": HI, "prompt": "x"}),
        ("messages", {"messages": ()}),
        ("prompt", {"prompt": ()}),
        ("prompt", {"prompt": (INFO.vocab_size,)}),
        ("prompt", {"prompt": (-1,)}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("max_tokens", {"limits": Limits(max_tokens=0)}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("top_logprobs", {"top_logprobs": -1}),
        ("stop", {"stop": ("x",) * 65}),
        ("stop[1]", {"stop": ("x", "")}),
        ("stop[0]", {"stop": ("x" * 5000,)}),
        ("temperature", {"sampling": Sampling(temperature=-0.1)}),
        ("temperature", {"sampling": Sampling(temperature=float("nan"))}),
        ("temperature", {"sampling": Sampling(temperature=2.1)}),
        ("top_k", {"sampling": Sampling(top_k=-2)}),
        ("top_p", {"sampling": Sampling(top_p=1.1)}),
        ("min_p", {"sampling": Sampling(min_p=-1.0)}),
        ("presence_penalty", {"sampling": Sampling(presence_penalty=2.5)}),
        ("frequency_penalty", {"sampling": Sampling(frequency_penalty=-3.0)}),
        ("repetition_penalty", {"sampling": Sampling(repetition_penalty=float("inf"))}),
        ("repetition_penalty", {"sampling": Sampling(repetition_penalty=0.0)}),
        ("dry_multiplier", {"sampling": Sampling(dry_multiplier=-0.5)}),
        ("dry_base", {"sampling": Sampling(dry_base=0.9)}),
        ("dry_allowed_length", {"sampling": Sampling(dry_allowed_length=-1)}),
        ("dry_sequence_breakers", {"sampling": Sampling(dry_sequence_breakers=("x",) * 65)}),
        ("dry_sequence_breakers[1]", {"sampling": Sampling(dry_sequence_breakers=("x", ""))}),
        ("dry_sequence_breakers[0]", {"sampling": Sampling(dry_sequence_breakers=("x" * 41,))}),
        ("logit_bias", {"sampling": Sampling(logit_bias={49152: 1.0})}),
        ("logit_bias", {"sampling": Sampling(logit_bias={-1: 1.0})}),
        ("logit_bias", {"sampling": Sampling(logit_bias={1: 100.5})}),
        ("adapter", {"adapter": "mine"}),
        ("tools", {"tool_policy": ToolPolicy("required")}),
        ("tool_choice", {"tools": TOOLS, "tool_policy": ToolPolicy("auto", ("g",))}),
        ("best_of", {"n": 3, "best_of": 2}),
        ("suffix", {"suffix": "x"}),
        ("suffix", {"prompt": "x", "suffix": "y"}),
        ("response_format", {"constraint": Constraint("json_schema", '{"not": {}}')}),
        ("grammar", {"constraint": Constraint("regex", "(")}),
        ("echo", {"echo": True}),
        ("max_tokens", {"prompt": "x", "limits": Limits(max_tokens=0)}),
    ],
)
async def test_what_is_out_of_range_or_not_served_is_refused_by_name(
    field: str, fields: dict[str, Any]
) -> None:
    engine = ScriptedEngine(ids("a"))
    with pytest.raises(InvalidRequest) as caught:
        await events_of(engine, **fields)
    assert caught.value.field == field
    assert not engine.requests


async def test_neutral_values_ask_the_engine_for_nothing() -> None:
    neutral = Sampling(
        presence_penalty=0.0,
        frequency_penalty=0,
        repetition_penalty=1.0,
        dry_multiplier=0.0,
        logit_bias={},
    )
    engine = ScriptedEngine(ids("a"))
    assert text(await answer_of(engine, sampling=neutral)) == "a"
    assert engine.requests[0].sampling == Sampling(temperature=1.0)


async def test_bias_and_penalties_reach_the_engine_resolved() -> None:
    engine = ScriptedEngine([])
    asked = Sampling(
        presence_penalty=0.5,
        frequency_penalty=-2.0,
        repetition_penalty=1.25,
        logit_bias={104: -100.0},
        dry_multiplier=0.8,
        dry_sequence_breakers=("the",),
    )
    await events_of(engine, sampling=asked)
    sent = engine.requests[0].sampling
    assert (sent.presence_penalty, sent.frequency_penalty) == (0.5, -2.0)
    assert (sent.repetition_penalty, sent.logit_bias) == (1.25, {104: -100.0})
    assert (sent.dry_multiplier, sent.dry_base, sent.dry_allowed_length) == (0.8, 1.75, 2)
    assert (260,) in sequences_of(sent.dry_breakers) and sent.dry_sequence_breakers is None


def parts(chat_template: str | None, mark: str = "<|im_start|>") -> TextParts:
    tokens = [mark if token == "<|im_start|>" else token for token in tiny_data().tokens]
    data = tiny_data(tokens=tokens)
    return TextParts("m", "f", data, chat_template, None, None, (), Sampling(), 128, 264)


@pytest.mark.parametrize("template", [None, "{% for %}", "{{ raise_exception('no') }}", "shows it"])
async def test_a_template_that_fits_the_tokens_stands_in_for_one_that_does_not_work(
    template: str | None,
) -> None:
    engine = ScriptedEngine([])
    loaded = Generator.load(engine, parts(template))
    _ = [event async for event in run(loaded, GenerateRequest(messages=HI))]
    expected = TOKENIZER.encode(ChatTemplate(CHATML).render(HI))
    assert engine.requests[0].token_ids == tuple(expected)


@pytest.mark.parametrize("template", [None, "{% for %}"])
async def test_without_a_usable_template_completions_still_work(template: str | None) -> None:
    engine = ScriptedEngine(ids("a"))
    loaded = Generator.load(engine, parts(template, mark="<|other|>"))
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        _ = [event async for event in run(loaded, GenerateRequest(messages=HI))]
    assert caught.value.code == "no_chat_template"
    request = GenerateRequest(prompt="x")
    assert text(fold([event async for event in run(loaded, request)])) == "a"


async def test_messages_that_come_to_no_text_are_refused() -> None:
    plain = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}")
    engine = ScriptedEngine(ids("a"))
    silent = GenerateRequest(messages=(Message("user", (Text(""),)),))
    with pytest.raises(InvalidRequest) as refused:
        await anext(run(Generator(engine, TOKENIZER, plain), silent))
    assert refused.value.field == "messages" and engine.requests == []
