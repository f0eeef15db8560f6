"""Prompts for filling in, with what a model wants before any text."""

from __future__ import annotations

import pytest

from penstock.dialog import GenerateRequest, Limits
from penstock.generation.prompt.builder import PromptBuilder
from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.tiny_tokenizer import END_OF_TEXT, tiny_data, tiny_tokenizer

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
PREFIX, SUFFIX, MIDDLE = range(264, 267)


def built(request: GenerateRequest, *, add_bos: bool) -> tuple[int, ...]:
    plain = tiny_data()
    tokenizer = tiny_tokenizer(
        tokens=[*plain.tokens, *MARKS],
        token_types=[*plain.token_types, *[int(TokenType.CONTROL)] * len(MARKS)],
        add_bos=add_bos,
    )
    (prompt,) = PromptBuilder(tokenizer, None).build(request, 100, tokenizer.vocab_size)
    return tuple(prompt.token_ids)


@pytest.mark.parametrize("given", ["ab", (ord("a"), ord("b"))])
def test_the_first_token_of_any_text_stands_before_the_marks(
    given: str | tuple[int, ...],
) -> None:
    request = GenerateRequest(prompt=given, suffix="cd")
    around = (PREFIX, *b"ab", SUFFIX, *b"cd", MIDDLE)
    assert built(request, add_bos=True) == (END_OF_TEXT, *around)
    assert built(request, add_bos=False) == around


def test_it_counts_among_what_must_fit() -> None:
    request = GenerateRequest(prompt="x" * 200, suffix="cd", limits=Limits(truncate=True))
    ids = built(request, add_bos=True)
    assert ids[:2] == (END_OF_TEXT, PREFIX)
    assert len(ids) < 100


def test_a_request_computes_best_of_answers_for_each_prompt() -> None:
    assert GenerateRequest(prompt="a", n=2).num_sequences == 2
    assert GenerateRequest(prompts=("a", "b", "c"), n=1, best_of=4).num_sequences == 12
