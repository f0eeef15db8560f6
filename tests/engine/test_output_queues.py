"""The mailboxes of in-flight requests: what waits for a busy reader is coalesced, nothing is
lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._native import Gate, Lane, Lanes
from penstock.base.errors import EngineFault
from penstock.dialog import Sampling
from penstock.engine.ipc.messages import MAX_FRAME_BYTES
from penstock.engine.output_queues import RequestOutputQueues
from penstock.engine.protocol import Tap
from penstock.engine.types import FinishReason, TokenDelta, TokenOutput, TokenRequest
from penstock.text.detokenizer import plain_texts
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer


class Post:
    """RequestOutputQueues with one request "r" whose chunks the test hands in."""

    def __init__(self, tap: Tap | None = None) -> None:
        self.aborted: list[str] = []
        self.boxes = RequestOutputQueues(lambda _: None, self.aborted.append)
        request = TokenRequest("r", (1,), Sampling(), 0, 9999)
        self.chunks: AsyncIterator[TokenOutput] = self.boxes.generate(request, tap)
        self.sent = 0

    def send(self, count: int = 1, finish: FinishReason | None = None) -> None:
        tokens = tuple(TokenDelta(self.sent + k) for k in range(count))
        self.sent += count
        cached = 7 if self.sent == count else None
        self.boxes.deliver([TokenOutput("r", tokens, float(self.sent), cached, finish)])

    async def read(self) -> list[TokenOutput]:
        return [chunk async for chunk in self.chunks]


async def started(post: Post) -> asyncio.Task[list[TokenOutput]]:
    reading = asyncio.create_task(post.read())
    await asyncio.sleep(0)
    return reading


def ids(chunks: list[TokenOutput]) -> list[int]:
    return [token.token_id for chunk in chunks for token in chunk.tokens]


async def test_chunks_that_wait_are_joined_but_for_the_first() -> None:
    post = Post()
    reading = await started(post)
    for _ in range(4):
        post.send()
    post.send(2, "length")
    first, rest = await reading
    assert (ids([first]), first.step_time_s, first.cached_tokens) == ([0], 1.0, 7)
    assert (ids([rest]), rest.step_time_s, rest.finish) == ([1, 2, 3, 4, 5], 6.0, "length")


async def test_chunks_of_a_prompt_are_joined_up_to_the_first_of_the_answer() -> None:
    post = Post()
    reading = await started(post)
    for token in range(3):
        prompt = (TokenDelta(token, -1.0),)
        cached = None if token else 7
        post.boxes.deliver([TokenOutput("r", (), float(token), cached, prompt=prompt)])
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
    chunks = await reading
    assert [(len(c.tokens), c.finish) for c in chunks] == [(1, None), (2, None), (0, finish)]


async def test_an_error_comes_after_what_was_made_before_it() -> None:
    post = Post()
    got: list[TokenOutput] = []

    async def read() -> None:
        async for chunk in post.chunks:
            got.append(chunk)

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    for _ in range(3):
        post.send()
    post.boxes.fail("r", EngineFault("died"))
    with pytest.raises(EngineFault):
        await reading
    assert ids(got) == [0, 1, 2]
    assert len(post.boxes) == 0 and not post.aborted


async def test_a_reader_that_leaves_aborts_its_request() -> None:
    post = Post()
    reading = await started(post)
    post.send()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert post.aborted == ["r"] and len(post.boxes) == 0
    post.send()  # late chunks are dropped


async def test_a_tap_is_shown_what_comes_between_the_first_token_and_the_end() -> None:
    shown: list[TokenOutput] = []
    post = Post(shown.append)
    reading = await started(post)
    for finish in (None, None, None, "length"):
        post.send(1, finish)
        await asyncio.sleep(0)
    assert ids(await reading) == [0, 3]
    assert ids(shown) == [1, 2]


async def test_a_tap_is_shown_nothing_before_what_its_reader_has_not_seen() -> None:
    shown: list[TokenOutput] = []
    post = Post(shown.append)
    reading = await started(post)
    post.send()
    post.send()  # the reader was woken, but did not run
    await asyncio.sleep(0)
    post.send(1, "length")
    assert ids(await reading) == [0, 1, 2]
    assert shown == []


async def test_chunks_put_together_are_shown_to_the_tap_as_one() -> None:
    shown: list[TokenOutput] = []
    post = Post(shown.append)
    reading = await started(post)
    post.send()
    await asyncio.sleep(0)
    post.boxes.put([TokenOutput("r", (TokenDelta(8),), 2.0)])
    post.boxes.put([TokenOutput("r", (TokenDelta(9),), 3.0)])
    post.boxes.wake_readers()
    post.send(1, "length")
    await reading
    assert [(ids([chunk]), chunk.step_time_s) for chunk in shown] == [([8, 9], 3.0)]


async def test_a_tap_that_fails_ends_its_own_request_alone() -> None:
    def failing(_: TokenOutput) -> None:
        raise RuntimeError("broken")

    post = Post(failing)
    reading = await started(post)
    post.send()
    await asyncio.sleep(0)
    post.send()
    with pytest.raises(RuntimeError, match="broken"):
        await reading
    assert post.aborted == ["r"] and len(post.boxes) == 0


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

    sent, chunks = asyncio.run(through())
    assert ids(chunks) == list(range(sent))
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


class LanelessTap:
    """Takes all it is shown, and fails where a lane is asked for."""

    def __call__(self, chunk: TokenOutput) -> None:
        return None

    def lane(self) -> None:
        raise ValueError("no lane")

    def leave(self) -> None: ...


async def test_a_lane_that_cannot_be_opened_fails_its_request_alone() -> None:
    boxes = RequestOutputQueues(lambda _: None, lambda _: None, Lanes(MAX_FRAME_BYTES))
    other = TokenRequest("other", (1,), Sampling(), 0, 9)
    failing = TokenRequest("failing", (1,), Sampling(), 0, 9)
    answers = [boxes.generate(failing, LanelessTap()), boxes.generate(other)]
    for token in range(2):
        reading = [asyncio.create_task(anext(answer)) for answer in answers]
        await asyncio.sleep(0)
        boxes.deliver([TokenOutput(r.id, (TokenDelta(token),), 0.0, 0) for r in (failing, other)])
        told = await asyncio.gather(*reading, return_exceptions=True)
    assert isinstance(told[0], ValueError)
    assert isinstance(told[1], TokenOutput) and ids([told[1]]) == [1]


class UnleavableTap(LanelessTap):
    """Has a lane, and fails when that is closed."""

    def lane(self) -> Lane:
        gate = Gate(b"<", b">", [].append, None, b"=")
        return Lane(plain_texts(tiny_tokenizer()), gate, b"")

    def leave(self) -> None:
        raise RuntimeError("broken")


def in_lane() -> tuple[RequestOutputQueues, AsyncIterator[TokenOutput], list[str]]:
    """A request "r" whose tokens will go through a lane, and who was aborted."""
    aborted: list[str] = []
    boxes = RequestOutputQueues(lambda _: None, aborted.append, Lanes(MAX_FRAME_BYTES))
    request = TokenRequest("r", (1,), Sampling(), 0, 9)
    return boxes, boxes.generate(request, UnleavableTap()), aborted


async def enter_lane(
    boxes: RequestOutputQueues, answer: AsyncIterator[TokenOutput]
) -> asyncio.Task[TokenOutput]:
    """The reader of what follows."""
    first = asyncio.create_task(anext(answer))
    await asyncio.sleep(0)
    boxes.deliver([TokenOutput("r", (TokenDelta(65),), 0.0, 0)])
    await first
    reading = asyncio.create_task(anext(answer))
    await asyncio.sleep(0)
    boxes.deliver([TokenOutput("r", (TokenDelta(66),), 0.0)])
    return reading


async def test_a_reader_that_leaves_aborts_its_request_also_where_the_lane_fails() -> None:
    boxes, answer, aborted = in_lane()
    reading = await enter_lane(boxes, answer)
    reading.cancel()
    with pytest.raises(RuntimeError, match="broken"):
        await reading
    assert aborted == ["r"] and len(boxes) == 0


async def test_a_lane_that_cannot_be_left_fails_its_request_alone() -> None:
    boxes, answer, aborted = in_lane()
    reading = await enter_lane(boxes, answer)
    other = asyncio.create_task(anext(boxes.generate(TokenRequest("o", (1,), Sampling(), 0, 9))))
    await asyncio.sleep(0)
    boxes.deliver([TokenOutput(name, (TokenDelta(67),), 0.0, 0) for name in ("r", "o")])
    with pytest.raises(RuntimeError, match="broken"):
        await reading
    assert ids([await other]) == [67] and aborted[0] == "r"
