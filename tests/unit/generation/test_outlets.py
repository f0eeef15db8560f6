"""Deltas that go past the generator are those that it would have yielded, in their places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._native import Gate, Lanes
from penstock.dialog import Event, GenerateRequest, Message, RunEnded, Text, TextDelta
from penstock.dialog.outlet import DELTAS, Delta
from penstock.engine.ipc.messages import MAX_FRAME_BYTES, TokenOutputs, frame, from_engine_decoder
from penstock.engine.output_queues import RequestOutputQueues
from penstock.engine.protocol import Tap
from penstock.engine.types import EngineGauges, TokenDelta, TokenOutput, TokenRequest
from penstock.generation import Generator
from penstock.grammar.vocabulary import Vocabulary
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax, ReasoningSyntax
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import INFO

TOKENIZER = tiny_tokenizer()
SYNTAX = AnswerSyntax(TOOL_SYNTAXES["hermes"], ReasoningSyntax("<think>", "</think>"))
HI = (Message("user", (Text("hi"),)),)
PIECES = ("the ", "héllo\n", "<think>", "</think>", "stop", "st", "\u6c34", '"\\', "\x07")


class PostedEngine:
    """The mailboxes of an engine, whose chunks the test hands in: as they are, or as frames from
    which lanes take their part."""

    info = INFO

    def __init__(self, lanes: Lanes | None = None) -> None:
        self.lanes = lanes
        self.boxes = RequestOutputQueues(
            lambda request: self.asked.append(request.id), lambda _: None, lanes
        )
        self.asked: list[str] = []

    def deliver(self, chunk: TokenOutput) -> None:
        if self.lanes is None:
            self.boxes.deliver([chunk])
            return
        for body in self.lanes.feed(frame(TokenOutputs((chunk,)))):
            left = from_engine_decoder.decode(body)
            assert isinstance(left, TokenOutputs)
            self.boxes.put(left.chunks)
        self.boxes.wake_readers()

    def generate(self, request: TokenRequest, tap: Tap | None = None) -> AsyncIterator[TokenOutput]:
        return self.boxes.generate(request, tap)

    def set_tokenizer(self, vocabulary: Vocabulary) -> None: ...

    async def gauges(self) -> EngineGauges:
        return EngineGauges()


class Reader:
    """Takes deltas while it is `ready`, and keeps all events in the order in which they came."""

    def __init__(self) -> None:
        self.ready = False
        self.told: list[Event] = []
        self.direct = 0
        self.gates: list[Gate] = []
        self.through = self.counted = ""

    def send(self, deltas: Sequence[Delta]) -> None:
        assert self.ready
        self.direct += len(deltas)
        self.told += deltas

    def gate(self, choice: int, part: int) -> Gate:
        def write(piece: bytes) -> None:
            text = orjson.loads(piece.split(b"\r\n")[1])
            self.through += text
            self.told.append(TextDelta(choice, part, text))

        assert self.ready
        self.gates.append(Gate(b'"', b'"', write))
        return self.gates[-1]

    def passed(self, choice: int, part: int, text: str) -> None:
        assert not self.gates[-1].is_open
        self.counted += text

    def busy(self) -> None:
        """Take nothing for now."""
        self.ready = False
        if self.gates:
            self.gates[-1].close()


async def told(
    steps: Sequence[tuple[bytes, bool, bool]],
    reader: Reader,
    request: GenerateRequest,
    lanes: Lanes | None = None,
) -> list[Event]:
    """What a reader is told of an answer. A step: its tokens, whether the reader is ready for
    them, whether it gets a turn after them."""
    engine = PostedEngine(lanes)
    events = Generator(engine, TOKENIZER, tiny_template(), syntax=SYNTAX).run(request, reader)

    async def read() -> None:
        async for event in events:
            reader.told.append(event)

    reading = asyncio.create_task(read())
    while not engine.asked:
        await asyncio.sleep(0)
    for at, (data, ready, pause) in enumerate(steps):
        if ready:
            reader.ready = True
        else:
            reader.busy()
        finish = "length" if at == len(steps) - 1 else None
        tokens = tuple(TokenDelta(byte) for byte in data)
        engine.deliver(TokenOutput(engine.asked[0], tokens, float(at), 0, finish))
        if lanes is None or pause:
            reader.busy()
        for _ in range(3 * pause):
            await asyncio.sleep(0)
    await reading
    return reader.told


def merged(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """What happened, however the deltas were cut; without times."""
    shown: list[tuple[object, ...]] = []
    for event in events:
        last = shown[-1] if shown else ()
        if type(event) in DELTAS:
            assert isinstance(event, Delta)
            if last[:2] == (type(event), event.part):
                shown[-1] = (*last[:2], f"{last[2]}{event.text}")
            else:
                shown.append((type(event), event.part, event.text))
        else:
            value = getattr(event, "value", None)
            shown.append((type(event), value, getattr(event, "stop_sequence", None)))
    return shown


STEPS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(PIECES).map(str.encode), st.binary(max_size=3)),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([(), ("stop",), ("stop", "e h")]))
def test_the_short_way_tells_what_the_long_way_does(
    steps: list[tuple[bytes, bool, bool]], stop: tuple[str, ...]
) -> None:
    request = GenerateRequest(messages=HI, stop=stop, streamed=True)
    long = asyncio.run(told([(data, False, True) for data, _, _ in steps], Reader(), request))
    short = asyncio.run(told(steps, Reader(), request))
    assert merged(short) == merged(long)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([(), ("stop",)]))
def test_lanes_tell_what_the_long_way_does(
    steps: list[tuple[bytes, bool, bool]], stop: tuple[str, ...]
) -> None:
    request = GenerateRequest(prompt="x", stop=stop, streamed=True)
    reader = Reader()
    long = asyncio.run(told([(data, False, True) for data, _, _ in steps], Reader(), request))
    short = asyncio.run(told(steps, reader, request, Lanes(MAX_FRAME_BYTES)))
    assert merged(short) == merged(long)
    ends = [events[-1] for events in (short, long)]
    assert all(isinstance(end, RunEnded) for end in ends)
    assert len({(end.status, end.usage.completion_tokens) for end in ends}) == 1
    assert reader.counted == reader.through


async def test_plain_tokens_go_through_a_lane() -> None:
    reader = Reader()
    steps = [(bytes([letter]), True, False) for letter in b"abcdef"]
    steps[0] = (b"a", True, True)
    request = GenerateRequest(prompt="x", streamed=True)
    events = await told(steps, reader, request, Lanes(MAX_FRAME_BYTES))
    assert [e.text for e in events if isinstance(e, TextDelta)] == list("abcdef")
    assert (reader.direct, reader.through, reader.counted) == (1, "cde", "cde")


async def test_tokens_of_an_open_text_go_the_short_way() -> None:
    reader = Reader()
    steps = [(bytes([letter]), True, True) for letter in b"abcdef"]
    events = await told(steps, reader, GenerateRequest(prompt="x", streamed=True))
    assert [e.text for e in events if isinstance(e, TextDelta)] == list("abcdef")
    assert reader.direct == 4  # the first opens the text, the last one ends it


async def test_several_answers_go_the_long_way() -> None:
    reader = Reader()
    reader.ready = True
    engine = PostedEngine()
    events = Generator(engine, TOKENIZER).run(GenerateRequest(prompt="x", n=2), reader)
    reading = asyncio.create_task(_read(events))
    while len(engine.asked) < 2:
        await asyncio.sleep(0)
    for at in range(3):
        for id in engine.asked:
            finish = "stop" if at == 2 else None
            engine.boxes.deliver([TokenOutput(id, (TokenDelta(97),), 0.0, 0, finish)])
        await asyncio.sleep(0)
    await reading
    assert reader.direct == 0


async def _read(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]
