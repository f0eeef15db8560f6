"""ASCII text split by Python's expressions has the words and the ids that the library gives it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_text import tiny_data
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from penstock.text.build import build_backend
from penstock.text.pretokenizers import SPLITS
from penstock.text.words import LONGEST_CHARS, AsciiWords, ascii_words

NAMES = sorted({split: name for name, split in SPLITS.items()}.values())
ascii_texts = st.lists(
    st.one_of(
        st.text(st.characters(max_codepoint=127), max_size=6),
        st.sampled_from(["the", "The", "word", "'s", "'LL", " ", "  ", "\n", "\r\n", "1234", "//"]),
    ),
    max_size=12,
).map("".join)


def backend_of(name: str) -> Tokenizer:
    return build_backend(tiny_data(pre=name))


def known_words(backend: Tokenizer) -> AsciiWords:
    words = ascii_words(backend)
    assert words is not None
    return words


BACKENDS = {name: backend_of(name) for name in NAMES}
WORDS = {name: known_words(backend) for name, backend in BACKENDS.items()}


@pytest.mark.parametrize("name", NAMES)
@given(text=ascii_texts)
def test_words_have_the_ids_of_the_text(name: str, text: str) -> None:
    expected = [] if not text else BACKENDS[name].encode(text, add_special_tokens=False).ids
    assert WORDS[name].encode(text) == expected
    assert WORDS[name].encode(text) == expected  # from memory


@pytest.mark.parametrize("name", NAMES)
@given(text=ascii_texts)
def test_text_is_split_where_the_library_splits_it(name: str, text: str) -> None:
    pieces = BACKENDS[name].pre_tokenizer.pre_tokenize_str(text)
    cuts = [start for _, (start, _) in pieces]
    words = WORDS[name].split(text)
    assert [sum(map(len, words[:index])) for index in range(len(words))] == cuts
    assert "".join(words) == text


def test_a_word_longer_than_those_remembered_has_its_ids_too() -> None:
    backend, text = backend_of("gpt-2"), "the" * LONGEST_CHARS
    assert known_words(backend).encode(text) == backend.encode(text).ids


def test_digits_may_be_split_alone_or_in_runs() -> None:
    for alone in (True, False):
        backend = backend_of("gpt-2")
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=alone),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        words = known_words(backend).split("in 1999, a")
        assert words == ["in", " ", *("1999" if alone else ["1999"]), ",", " a"]


def with_lowercase(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Lowercase()


def with_prefix_space(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def with_unknown_property(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\p{Greek}+"), "isolated")


def with_words_dropped(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")


def with_meaning_of_its_own(backend: Tokenizer) -> None:
    """`\\h` is a hexadecimal digit to the library, and nothing to Python."""
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\h+"), "isolated")


def with_lines_of_its_own(backend: Tokenizer) -> None:
    """`^` is the start of any line to the library, of the text to Python."""
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"^[a-z]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def with_truncation(backend: Tokenizer) -> None:
    backend.enable_truncation(4)


def with_dropout(backend: Tokenizer) -> None:
    backend.model.dropout = 0.5


def with_another_model(backend: Tokenizer) -> None:
    backend.model = models.WordLevel({"the": 0}, "the")


CHANGES = [
    *(with_lowercase, with_prefix_space, with_unknown_property, with_words_dropped),
    *(with_meaning_of_its_own, with_lines_of_its_own, with_truncation, with_dropout),
    with_another_model,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_does_more_than_split_and_merge_is_left_to_the_library(change) -> None:
    backend = backend_of("gpt-2")
    change(backend)
    assert ascii_words(backend) is None
