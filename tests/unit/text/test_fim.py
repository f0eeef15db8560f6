"""Fill-in-the-middle prompts and the tokens that end them."""

from __future__ import annotations

import pytest

from penstock.text.fim import fim_tokens_of


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], [0, 7, 8, 1, 9, 2]),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], [0, 7, 8, 1, 9, 2]),
        (["[PREFIX]", "[SUFFIX]"], [1, 9, 0, 7, 8]),
    ],
)
def test_fim_prompt_has_the_order_of_its_family(marks: list[str], expected: list[int]) -> None:
    fim = fim_tokens_of({mark: index for index, mark in enumerate(marks)})
    assert fim is not None
    assert fim.tokens([7, 8], [9]) == expected


def test_fim_and_file_tokens_end_the_inserted_text() -> None:
    tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|other|>"]
    fim = fim_tokens_of({mark: index for index, mark in enumerate(tokens)})
    assert fim is not None and fim.stop_ids == {0, 1, 2, 3}


def test_model_without_fim_tokens_has_none() -> None:
    assert fim_tokens_of({"<|im_start|>": 0}) is None
