"""Outputs of requests that are not streamed are held back and coalesced, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialog import Sampling
from penstock.engine.output_coalescing import MAX_COALESCED, OutputCoalescer
from penstock.engine.types import FinishReason, TokenDelta, TokenOutput, TokenRequest


def request(request_id: str, *, whole: bool) -> TokenRequest:
    return TokenRequest(request_id, (1,), Sampling(), 0, 9999, not_streamed=whole)


def chunk(request_id: str, *tokens: int, finish: FinishReason | None = None) -> TokenOutput:
    cached = 7 if tokens[:1] == (0,) else None
    return TokenOutput(request_id, tuple(map(TokenDelta, tokens)), 1.0, cached, finish)


def ids(chunks: list[TokenOutput]) -> list[int]:
    return [token.token_id for chunk in chunks for token in chunk.tokens]


def joiner() -> OutputCoalescer:
    """A coalescer with a request "whole" and a request "bits"."""
    made = OutputCoalescer()
    made.add(request("whole", whole=True))
    made.add(request("bits", whole=False))
    return made


def test_only_the_last_output_of_a_whole_answer_is_sent() -> None:
    made = joiner()
    for token in range(20):
        assert made.coalesce([chunk("whole", token), chunk("bits", token)]) == [
            chunk("bits", token)
        ]
    last = made.coalesce([chunk("whole", 20, finish="stop")])
    assert [ids(last), last[0].finish, last[0].cached_tokens] == [[*range(21)], "stop", 7]


def test_a_whole_answer_has_the_time_of_its_first_token() -> None:
    made = joiner()
    made.coalesce([TokenOutput("whole", (), 1.0, 7, prompt=(TokenDelta(5, -1.0),))])
    for step in (2.0, 3.0):
        made.coalesce([TokenOutput("whole", (TokenDelta(1),), step)])
    (last,) = made.coalesce([TokenOutput("whole", (TokenDelta(2),), 4.0, finish="stop")])
    assert (last.first_step_time_s, last.step_time_s) == (2.0, 4.0)


def test_held_outputs_are_bounded() -> None:
    made = joiner()
    passed = [made.coalesce([chunk("whole", token)]) for token in range(3 * MAX_COALESCED)]
    assert max(len(ids(chunks)) for chunks in passed) == MAX_COALESCED
    assert len(ids([c for chunks in passed for c in chunks])) == 3 * MAX_COALESCED


@pytest.mark.parametrize("finish", ["error", "abort"])
def test_tokens_before_a_failure_precede_it(finish: FinishReason) -> None:
    made = joiner()
    made.coalesce([chunk("whole", 0)])
    made.coalesce([chunk("whole", 1)])
    failure = chunk("whole", finish=finish)
    before, last = made.coalesce([failure])
    assert (ids([before]), before.finish, last) == ([0, 1], None, failure)


def test_a_request_that_fails_at_once_has_one_output() -> None:
    failure = chunk("whole", finish="error")
    assert joiner().coalesce([failure]) == [failure]


def test_a_forgotten_request_holds_no_outputs() -> None:
    made = joiner()
    made.coalesce([chunk("whole", 0), chunk("whole", 1)])
    made.forget("whole")
    made.forget("whole")
    made.add(request("whole", whole=True))
    assert made.coalesce([chunk("whole", 5, finish="stop")]) == [chunk("whole", 5, finish="stop")]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=20), st.booleans())
def test_every_token_comes_once_and_in_order(counts: list[int], whole: bool) -> None:
    made = OutputCoalescer()
    made.add(request("r", whole=whole))
    sent = 0
    passed: list[TokenOutput] = []
    for index, count in enumerate(counts):
        finish: FinishReason | None = "length" if index == len(counts) - 1 else None
        passed += made.coalesce([chunk("r", *range(sent, sent + count), finish=finish)])
        sent += count
    assert ids(passed) == list(range(sent))
    assert [c.finish for c in passed] == [None] * (len(passed) - 1) + ["length"]
    assert passed[0].cached_tokens == 7
