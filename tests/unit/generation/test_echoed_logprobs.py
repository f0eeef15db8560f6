"""An echoed prompt with the log-probabilities of its tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from scripted_generator import run

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import GenerateRequest, Limits, Text, TextDelta, TokenLogprob
from penstock.dialog.fold import fold
from penstock.engine.types import EngineInfo
from penstock.generation import Generator
from penstock.models.tokenizer.tokenizer_data import TokenizerData, TokenType
from penstock.text import Tokenizer
from penstock.text.tokenizers.tokenizer import from_gguf
from tests.support.checkpoints.tiny_tokenizer import END_OF_TEXT, IM_END, IM_START, tiny_tokenizer
from tests.support.scripted_engine import INFO, ScriptedEngine


async def choices(
    engine: ScriptedEngine, tokenizer: Tokenizer | None = None, **fields: Any
) -> list[tuple[str, list[TokenLogprob]]]:
    """Text and logprobs of each choice."""
    request = GenerateRequest(**{"echo": True, "top_logprobs": 0} | fields)
    generator = Generator(engine, tokenizer or tiny_tokenizer())
    answer = fold([event async for event in run(generator, request)])
    found = []
    for choice in answer.choices:
        (part,) = choice.parts
        assert isinstance(part, Text)
        found.append((part.text, choice.logprobs))
    return found


def spans(text: str, logprobs: list[TokenLogprob]) -> list[str]:
    """Return the texts between the offsets of neighbouring tokens."""
    offsets = [token.offset for token in logprobs] + [len(text)]
    return [text[a:b] for a, b in pairwise(offsets)]


def info(max_model_len: int) -> EngineInfo:
    return EngineInfo("scripted", max_model_len, 264, 8, 128, 16, 0, "fp")


async def test_the_tokens_of_the_prompt_come_before_those_of_the_answer() -> None:
    engine = ScriptedEngine([*b"!?", IM_END])
    ((text, logprobs),) = await choices(engine, prompt="thé in", top_logprobs=2)
    assert text == "thé in!?"
    assert [token.logprob for token in logprobs] == [None] + [-0.5] * (len(logprobs) - 1)
    assert logprobs[0].top == () and len(logprobs[1].top) == 2
    assert b"".join(token.token_bytes for token in logprobs).decode() == text
    assert spans(text, logprobs) == ["th", "", "é", " ", "in", "!", "?"]
    assert (engine.requests[0].prompt_logprobs, engine.requests[0].top_logprobs) == (2, 2)


async def test_every_choice_of_every_prompt_has_its_own() -> None:
    found = await choices(ScriptedEngine([*b"x"]), prompts=("ab", (0x63,)), n=2)
    assert [text for text, _ in found] == ["abx", "abx", "cx", "cx"]
    assert [[token.token_id for token in logprobs] for _, logprobs in found] == [
        [*b"abx"], [*b"abx"], [*b"cx"], [*b"cx"],
    ]  # fmt: skip


async def test_a_prompt_may_be_scored_without_an_answer() -> None:
    engine = ScriptedEngine([*b"never"])
    ((text, logprobs),) = await choices(engine, prompt=(97, 98, 99), limits=Limits(max_tokens=0))
    assert text == "abc" and [token.token_id for token in logprobs] == [97, 98, 99]
    assert engine.requests[0].max_tokens == 0
    ((text, logprobs),) = await choices(
        engine, prompt="ab", limits=Limits(max_tokens=0), top_logprobs=None
    )
    assert (text, logprobs) == ("ab", [])
    assert engine.requests[1].prompt_logprobs is None


async def test_without_an_answer_a_prompt_may_fill_the_context() -> None:
    engine = ScriptedEngine([], info=info(8))
    ((text, _),) = await choices(engine, prompt="a" * 8, limits=Limits(max_tokens=0))
    assert text == "a" * 8
    with pytest.raises(ContextLengthExceeded, match="answer of at least 0"):
        await choices(engine, prompt="a" * 9, limits=Limits(max_tokens=0))
    with pytest.raises(ContextLengthExceeded, match="answer of at least 1"):
        await choices(engine, prompt="a" * 8)


async def test_offsets_are_right_where_text_and_tokens_differ() -> None:
    spelled = "<|im_start|>ab"
    ((text, logprobs),) = await choices(ScriptedEngine([]), prompt=spelled)
    assert text == spelled and spans(text, logprobs) == ["<|im_start|>", "a", "b"]
    ((text, logprobs),) = await choices(ScriptedEngine([]), prompt=(97, IM_START, 98))
    assert text == "ab" and spans(text, logprobs) == ["a", "", "b"]
    with_bos = tiny_tokenizer(add_bos=True)
    ((text, logprobs),) = await choices(ScriptedEngine([]), with_bos, prompt="ab")
    assert [token.token_id for token in logprobs] == [END_OF_TEXT, 97, 98]
    assert text == "ab" and spans(text, logprobs) == ["", "a", "b"]


async def test_of_a_truncated_prompt_the_kept_end_has_logprobs() -> None:
    engine = ScriptedEngine([], info=info(8))
    limits = Limits(max_tokens=4, truncate=True)
    ((text, logprobs),) = await choices(engine, prompt="abcdefghij", limits=limits)
    assert text == "abcdefghij"
    assert spans(text, logprobs) == ["g", "h", "i", "j"]
    engine = ScriptedEngine([], info=info(40))
    with_bos, limits = tiny_tokenizer(add_bos=True), Limits(max_tokens=36, truncate=True)
    ((text, logprobs),) = await choices(engine, with_bos, prompt="a" * 40 + "xyz", limits=limits)
    assert spans(text, logprobs)[0] == "" and spans(text, logprobs)[-3:] == ["x", "y", "z"]


async def test_the_space_that_a_model_puts_before_a_text_is_not_counted() -> None:
    pieces = ["<unk>", "<s>", "</s>", "▁a", "b", "▁", "a"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.NORMAL] * 4
    data = TokenizerData(
        model="llama",
        pre=None,
        tokens=pieces,
        token_types=[int(kind) for kind in kinds],
        scores=[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0],
        merges=[],
        bos_id=1,
        eos_id=2,
        unknown_id=0,
    )
    ((text, logprobs),) = await choices(ScriptedEngine([]), from_gguf(data), prompt="ab a")
    assert text == "ab a"
    assert spans(text, logprobs)[-3:] == ["a", "b", " a"]


async def test_the_echo_is_one_delta_and_waits_for_all_of_its_scores() -> None:
    request = GenerateRequest(prompt="a" * 9, echo=True, top_logprobs=0)
    generator = Generator(ScriptedEngine([*b"xy"]), tiny_tokenizer())
    deltas = [e async for e in run(generator, request) if isinstance(e, TextDelta)]
    assert [delta.text for delta in deltas] == ["a" * 9 + "x", "y"]
    assert [len(delta.logprobs) for delta in deltas] == [10, 1]


async def test_with_a_suffix_prompts_have_no_order_to_score_in() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await choices(ScriptedEngine([], info=INFO), prompt="a", suffix="b")
    assert refused.value.field == "echo"
