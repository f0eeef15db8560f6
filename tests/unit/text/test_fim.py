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
def test_each_family_has_its_order(marks: list[str], expected: list[int]) -> None:
    fill_in = fim_tokens_of({mark: index for index, mark in enumerate(marks)})
    assert fill_in is not None
    assert fill_in.tokens([7, 8], [9]) == expected


def test_marks_and_ends_of_files_end_what_is_filled_in() -> None:
    tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|other|>"]
    fill_in = fim_tokens_of({mark: index for index, mark in enumerate(tokens)})
    assert fill_in is not None and fill_in.stop_ids == {0, 1, 2, 3}


def test_a_model_without_marks_cannot_fill_in() -> None:
    assert fim_tokens_of({"<|im_start|>": 0}) is None
