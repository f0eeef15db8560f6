"""DRY's matches in a sequence, against their definition computed naively."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

native = pytest.importorskip("penstock._native")

MANY = 1 << 30


def pairs_of(breakers: Sequence[Sequence[int]]) -> list[tuple[list[int], list[int]]]:
    """Return heads and tails, merging those with the same tail."""
    by_tail: dict[tuple[int, ...], set[int]] = {}
    for head, *tail in breakers:
        by_tail.setdefault(tuple(tail), set()).add(head)
    return [(sorted(heads), list(tail)) for tail, heads in by_tail.items()]


def matches(
    tokens: Sequence[int],
    breakers: Sequence[Sequence[int]] = (),
    longest: int = MANY,
    least: int = 1,
) -> dict[int, int]:
    repetitions = native.DryRepetitions(pairs_of(breakers), longest)
    repetitions.extend(np.array(tokens, np.int32))
    return listed(repetitions, least)


def listed(repetitions: object, least: int = 1) -> dict[int, int]:
    starts, found, lengths = native.DryRepetitions.lists([repetitions], [least])
    assert starts.tolist() == [0, len(found)]
    assert found.tolist() == sorted(set(found.tolist()))
    return dict(zip(found.tolist(), lengths.tolist(), strict=True))


def by_definition(
    tokens: Sequence[int],
    breakers: Sequence[Sequence[int]] = (),
    longest: int = MANY,
    least: int = 1,
) -> dict[int, int]:
    """Compare every earlier place with the end, token by token."""
    end, limit = len(tokens), 0
    while limit < end and not any(
        list(tokens[end - limit - len(b) : end - limit]) == list(b)
        for b in breakers
        if len(b) <= end - limit
    ):
        limit += 1
    result: dict[int, int] = {}
    for place in range(end):
        length = 0
        while length < min(limit, place) and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        length = min(length, longest)
        if length >= least and [tokens[place]] not in [list(b) for b in breakers]:
            result[tokens[place]] = max(result.get(tokens[place], 0), length)
    return result


SMALL = st.lists(st.integers(0, 3), max_size=60)
BREAKERS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3)


@settings(deadline=None, max_examples=400)
@given(SMALL, BREAKERS, st.integers(1, 8) | st.just(MANY), st.integers(1, 5))
def test_matches_are_the_longest_by_definition(tokens, breakers, longest, least):
    least = min(least, longest)
    wanted = by_definition(tokens, breakers, longest, least)
    assert matches(tokens, breakers, longest, least) == wanted


@settings(deadline=None, max_examples=60)
@given(SMALL, SMALL, BREAKERS)
def test_a_sequence_may_come_in_any_parts(first, second, breakers):
    repetitions = native.DryRepetitions(pairs_of(breakers), MANY)
    repetitions.extend(np.array(first, np.int32))
    for at, token in enumerate(second):
        native.DryRepetitions.append_each([None, repetitions], [9, token])
        assert listed(repetitions) == by_definition(first + second[: at + 1], breakers)


@pytest.mark.parametrize("kind", ["periodic", "one token", "words"])
def test_long_sequences_are_exact_too(kind):
    draw = random.Random(5)
    tokens = {
        "periodic": [draw.randrange(50) for _ in range(17)] * 60,
        "one token": [3] * 900,
        "words": [t for _ in range(200) for t in draw.choice([(1, 2, 3), (1, 2, 4, 9), (7,)])],
    }[kind]
    assert matches(tokens, [[9, 1]]) == by_definition(tokens, [[9, 1]])


def test_a_long_run_of_one_token_is_matched_up_to_its_start():
    tokens = [7] * 20_000
    assert matches(tokens, least=19_990) == {7: 19_999}
    assert matches(tokens, longest=100) == {7: 100}


@pytest.mark.parametrize("kind", ["all different", "one token", "most states", "most edges", "few"])
def test_memory_is_bounded_by_the_length(kind):
    count = 5000
    draw = random.Random(3)
    tokens = {
        "all different": list(range(count)),
        "one token": [3] * count,
        "most states": [1] + [2] * (count - 1),
        "most edges": [1] + [2] * (count - 2) + [3],
        "few": [draw.randrange(3) for _ in range(count)],
    }[kind]
    repetitions = native.DryRepetitions([], MANY)
    for begin in range(0, count, 250):
        repetitions.extend(np.array(tokens[begin : begin + 250], np.int32))
        limit = (begin + 250) * native.DryRepetitions.bytes_per_token
        assert 20 * begin < repetitions.size_bytes <= limit


def test_nothing_repeats_in_an_empty_or_fresh_sequence():
    assert matches([]) == {}
    assert matches([1, 2, 3, 4]) == {}


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="breakers"):
        native.DryRepetitions([([2, 1], [])], 5)
    with pytest.raises(ValueError, match="longest"):
        native.DryRepetitions([], 0)
    with pytest.raises(ValueError, match="least"):
        native.DryRepetitions.lists([native.DryRepetitions([], 5)], [0])
    with pytest.raises(ValueError, match="least"):
        native.DryRepetitions.lists([None], [1, 1])
    with pytest.raises(ValueError, match="tokens"):
        native.DryRepetitions.append_each([None], [1, 1])


def test_the_lists_of_a_batch_follow_each_other():
    rows = [native.DryRepetitions([], MANY) for _ in range(3)]
    rows[0].extend(np.array([1, 2, 1], np.int32))
    rows[2].extend(np.array([5, 5], np.int32))
    starts, tokens, lengths = native.DryRepetitions.lists(
        [rows[0], None, rows[1], rows[2]], [1] * 4
    )
    assert starts.tolist() == [0, 1, 1, 1, 2]
    assert (tokens.tolist(), lengths.tolist()) == ([2, 5], [1, 1])


def test_negative_tokens_are_not_counted():
    row = native.DryRepetitions([], MANY)
    row.extend(np.array([4, 4], np.int32))
    native.DryRepetitions.append_each([row], [-1])
    assert listed(row) == {4: 1}


@given(SMALL, SMALL)
def test_counts_are_of_the_answer_and_tokens_of_both(prompt, answer):
    counts = native.TokenCounts(np.array(prompt, np.int32))
    counts.extend(np.array(answer, np.int32))
    native.TokenCounts.append_each([counts, None], [2, 3])
    starts, tokens, numbers = native.TokenCounts.lists([None, counts])
    assert starts.tolist() == [0, 0, len(tokens)]
    answer = [*answer, 2]
    assert tokens.tolist() == list(dict.fromkeys(prompt + answer))
    assert numbers.tolist() == [answer.count(token) for token in tokens.tolist()]
