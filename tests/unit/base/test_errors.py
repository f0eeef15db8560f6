"""What an error of a model says is for the operator's terminal, whoever wrote the model's files."""

from __future__ import annotations

import pytest

from penstock.base.errors import MAX_MODEL_ERROR_CHARS, ModelError


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("m.gguf: größer", "m.gguf: größer"),
        ("m.gguf: \x1b[2Jx\x07 is not known", "m.gguf: \\x1b[2Jx\\x07 is not known"),
        ("two\nlines\u2028three", "two\\nlines\\u2028three"),
        ("a lone \ud800", "a lone \\ud800"),
    ],
)
def test_a_model_error_is_one_line_that_moves_no_cursor(message: str, said: str) -> None:
    assert str(ModelError(message)) == said


def test_a_model_error_that_quotes_too_much_is_cut() -> None:
    fits = "x" * MAX_MODEL_ERROR_CHARS
    assert str(ModelError(fits)) == fits
    assert str(ModelError(fits + "y")) == fits + "..."
