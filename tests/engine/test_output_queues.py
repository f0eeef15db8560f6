"""The output queues of open requests: outputs that wait for a busy reader are coalesced, none is
lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import EngineFault, Overloaded, ServiceError, Unavailable
from penstock.dialog import Sampling
from penstock.engine.output_queues import RequestOutputQueues
from penstock.engine.types import FinishReason, TokenDelta, TokenOutput, TokenRequest


class Post:
    """RequestOutputQueues with one request "r" whose outputs the test delivers."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.queues = RequestOutputQueues(lambda *_: None, self.aborted.append, lambda: 2)
        self.outputs = self.queues.generate(TokenRequest("r", (1,), Sampling(), 0, 9999))
        self.sent = 0

    def send(self, count: int = 1, finish: FinishReason | None = None) -> None:
        tokens = tuple(TokenDelta(self.sent + k) for k in range(count))
        self.sent += count
        cached = 7 if self.sent == count else None
        self.queues.deliver([TokenOutput("r", tokens, float(self.sent), cached, finish)])

    async def read(self) -> list[TokenOutput]:
        return [output async for output in self.outputs]


async def started(post: Post) -> asyncio.Task[list[TokenOutput]]:
    reading = asyncio.create_task(post.read())
    await asyncio.sleep(0)
    return reading


def ids(outputs: list[TokenOutput]) -> list[int]:
    return [token.token_id for output in outputs for token in output.tokens]


async def test_waiting_outputs_are_coalesced_except_the_first() -> None:
    post = Post()
    reading = await started(post)
    for _ in range(4):
        post.send()
    post.send(2, "length")
    first, rest = await reading
    assert (ids([first]), first.step_time_s, first.cached_tokens) == ([0], 1.0, 7)
    assert (ids([rest]), rest.step_time_s, rest.finish) == ([1, 2, 3, 4, 5], 6.0, "length")


async def test_outputs_of_a_prompt_are_coalesced_up_to_the_first_token_of_the_answer() -> None:
    post = Post()
    reading = await started(post)
    for token in range(3):
        prompt = (TokenDelta(token, -1.0),)
        cached = None if token else 7
        post.queues.deliver([TokenOutput("r", (), float(token), cached, prompt=prompt)])
    post.send()
    post.send()
    post.send(1, "length")
    first, rest = await reading
    assert [token.token_id for token in first.prompt] == [0, 1, 2]
    assert (ids([first]), first.step_time_s, first.cached_tokens) == ([0], 1.0, 7)
    assert (ids([rest]), rest.prompt) == ([1, 2], ())


@pytest.mark.parametrize("finish", ["error", "abort"])
async def test_tokens_before_a_failure_come_before_it(finish: FinishReason) -> None:
    post = Post()
    reading = await started(post)
    post.send()
    post.send()
    post.send()
    post.send(0, finish)
    outputs = await reading
    assert [(len(c.tokens), c.finish) for c in outputs] == [(1, None), (2, None), (0, finish)]


async def test_an_error_comes_after_what_was_made_before_it() -> None:
    post = Post()
    got: list[TokenOutput] = []

    async def read() -> None:
        async for output in post.outputs:
            got.append(output)

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    for _ in range(3):
        post.send()
    post.queues.fail("r", EngineFault("died"))
    with pytest.raises(EngineFault):
        await reading
    assert ids(got) == [0, 1, 2]
    assert len(post.queues) == 0 and not post.aborted


async def test_a_reader_that_leaves_aborts_its_request() -> None:
    post = Post()
    reading = await started(post)
    post.send()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert post.aborted == ["r"] and len(post.queues) == 0
    post.send()  # late outputs are dropped


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=30))
def test_every_token_comes_once_and_in_order(sends: list[tuple[int, bool]]) -> None:
    async def through() -> tuple[int, list[TokenOutput]]:
        post = Post()
        reading = await started(post)
        for index, (count, pause) in enumerate(sends):
            post.send(count, "length" if index == len(sends) - 1 else None)
            if pause:
                await asyncio.sleep(0)
        return post.sent, await reading

    sent, outputs = asyncio.run(through())
    assert ids(outputs) == list(range(sent))
    assert [output.finish for output in outputs] == [None] * (len(outputs) - 1) + ["length"]


def queues(**more: Any) -> tuple[RequestOutputQueues, list[str], list[str]]:
    """Queues with room for two open sequences of a call; the ids that are submitted and aborted."""
    submitted: list[str] = []
    aborted: list[str] = []
    made = RequestOutputQueues(
        lambda request, _: submitted.append(request.id), aborted.append, lambda: 2, **more
    )
    return made, submitted, aborted


def requests(*names: str) -> list[TokenRequest]:
    return [TokenRequest(name, (1,), Sampling(), 0, 9) for name in names]


def output(name: str, token: int, finish: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(name, (TokenDelta(token),), 0.0, 0, finish)


async def test_a_call_waits_until_the_engine_has_admitted_it() -> None:
    made, submitted, _ = queues()
    stream = made.generate(*requests("a", "b"))
    waiting = asyncio.create_task(stream.admitted())
    await asyncio.sleep(0)
    made.admit("a")
    await asyncio.sleep(0)
    assert submitted == ["a", "b"] and not waiting.done()
    made.admit("b")
    await waiting


async def test_a_refusal_ends_a_call_and_its_other_requests_are_aborted() -> None:
    made, _, aborted = queues()
    stream = made.generate(*requests("a", "b"))
    waiting = asyncio.create_task(stream.admitted())
    await asyncio.sleep(0)
    made.admit("a")
    made.fail("b", Overloaded("full"))
    with pytest.raises(Overloaded):
        await waiting
    await stream.aclose()
    assert aborted == ["a"] and len(made) == 0


async def test_requests_of_a_call_are_submitted_as_others_finish() -> None:
    made, submitted, aborted = queues()
    stream = made.generate(*requests("a", "b", "c", "d"))
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    assert submitted == ["a", "b"]
    made.deliver([output("b", 1, "stop")])
    assert (await reading).id == "b" and submitted == ["a", "b", "c"]
    stream.abort("a")
    assert submitted == ["a", "b", "c", "d"] and aborted == ["a"]
    made.deliver([output("d", 2, "stop"), output("a", 3), output("c", 4, "stop")])
    assert [(got.id, ids([got])) async for got in stream] == [("d", [2]), ("c", [4])]
    assert len(made) == 0


async def test_a_submission_that_fails_is_raised_and_leaves_nothing_open() -> None:
    def refuse(*_: TokenRequest | None) -> None:
        raise Unavailable("restarting")

    made = RequestOutputQueues(refuse, lambda _: None, lambda: 2)
    stream = made.generate(*requests("a"))
    with pytest.raises(Unavailable):
        await stream.admitted()
    await stream.aclose()
    assert len(made) == 0


class Observer:
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.ends = 0
        self.errors: list[ServiceError] = []

    def sequence(self) -> Observer:
        return self

    def observe(self, output: TokenOutput) -> None:
        self.outputs.append(output)

    def end(self) -> None:
        self.ends += 1

    def failed(self, error: ServiceError) -> None:
        self.errors.append(error)


async def test_an_observer_sees_what_the_reader_takes() -> None:
    observer = Observer()
    made, _, _ = queues(observer=observer)
    stream = made.generate(*requests("a", "b"))
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    made.deliver([output("a", 1, "stop"), output("b", 2)])
    taken = [await reading, await anext(stream)]
    assert observer.outputs == taken and observer.ends == 1
    made.fail_all(lambda: EngineFault("died"))
    with pytest.raises(EngineFault):
        await anext(stream)
    await stream.aclose()
    assert observer.ends == 2 and [type(error) for error in observer.errors] == [EngineFault]
