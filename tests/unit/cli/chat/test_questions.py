"""The words of `penstock run`: a model, a question, or both."""

from __future__ import annotations

import pytest
from typer import BadParameter

from penstock.cli.chat.questions import split_words

MODEL = "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("words", "model", "asked", "found"),
    [
        ([], None, None, (None, None)),
        ([MODEL], None, None, (MODEL, None)),
        ([MODEL, "hi", "there"], None, None, (MODEL, "hi there")),
        (["llama"], None, None, ("llama", None)),
        (["summarise", "this"], None, None, (None, "summarise this")),
        (["Is 1/2 a number?"], None, None, (None, "Is 1/2 a number?")),
        (["smolm2-135m-instruct"], None, None, ("smolm2-135m-instruct", None)),
        (["owner/name"], None, None, ("owner/name", None)),
        (["x.gguf", "hi"], None, None, ("x.gguf", "hi")),
        (["summarise"], MODEL, None, (MODEL, "summarise")),
        (["no-such-model"], None, "hi", ("no-such-model", "hi")),
        ([], MODEL, "hi", (MODEL, "hi")),
    ],
)
def test_the_first_word_is_the_model_if_it_can_be_one(words, model, asked, found):
    assert split_words(words, model, asked) == found


def test_a_folder_is_a_model(tmp_path):
    assert split_words([str(tmp_path)], None, None) == (str(tmp_path), None)


@pytest.mark.parametrize(("words", "model"), [([MODEL, "hi"], None), (["hi"], MODEL)])
def test_a_question_is_given_once(words, model):
    with pytest.raises(BadParameter, match="given twice"):
        split_words(words, model, "hello")


def test_a_word_is_the_question_if_a_document_is_piped_in(monkeypatch):
    monkeypatch.setattr("penstock.cli.chat.questions.has_piped_input", lambda: True)
    assert split_words(["summarise"], None, None) == (None, "summarise")
    assert split_words(["smolm2-135m-instruct"], None, None) == ("smolm2-135m-instruct", None)
