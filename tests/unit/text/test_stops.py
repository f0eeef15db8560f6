"""Stop strings are found in any split of a text, and only possible starts are held back."""

from __future__ import annotations

import tracemalloc

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.text import StopStrings

LETTERS = st.text(alphabet="ab", max_size=24)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Apply the definition: the match that ends first, the longest of several."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    return [*pieces, rest]


@given(LETTERS, STOPS, st.lists(st.integers(0, 4), max_size=12))
@example("aab", ["ab"], [1, 1])
@example("abab", ["abb", "ba"], [2])
def test_every_split_of_a_text_shows_the_same(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    finder = StopStrings(stops)
    shown = ""
    for piece in cut(text, sizes):
        shown += finder.push(piece)
        assert not any(stop in shown for stop in stops)
    if finder.matched is None:
        shown += finder.finish()
    assert (shown, finder.matched) == expected(text, stops)


@given(LETTERS, STOPS)
def test_longest_prefix_of_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopStrings(stops)
    shown = "".join(finder.push(letter) for letter in text)
    if finder.matched is None:
        held = text[len(shown) :]
        starts = {stop[:size] for stop in stops for size in range(len(stop))}
        longest = max((s for s in starts if text.endswith(s)), key=len)
        assert held == longest


def test_text_that_cannot_start_a_stop_string_is_shown_at_once() -> None:
    finder = StopStrings(["\n\n", "]"])
    assert finder.push("hello ^-world") == "hello ^-world"
    assert finder.push("\n") == ""
    assert finder.push("x") == "\nx"
    assert finder.push("a\n\nb") == "a"
    assert finder.matched == "\n\n"
    assert finder.push("more") == ""


def test_regex_characters_in_stop_strings_are_literal() -> None:
    for letter in "^]-\\[.":
        finder = StopStrings([letter, "z"])
        assert finder.push("ok" + letter + "no") == "ok"
        assert finder.matched == letter


def test_stop_strings_use_memory_only_for_matched_text() -> None:
    tracemalloc.start()
    finders = [StopStrings(["ab" * 2000 + str(number) for number in range(64)]) for _ in range(20)]
    assert [finder.push("xabab") for finder in finders] == ["x"] * 20
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 8 * 2**20
