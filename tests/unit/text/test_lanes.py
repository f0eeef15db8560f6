"""The lanes of plain streams tell what the detokenizer and the JSON library would."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock._native import Gate, Lane, Lanes, StepTimes
from penstock.engine.ipc.messages import (
    MAX_FRAME_BYTES,
    FrameReader,
    Gauges,
    TokenOutputs,
    frame,
    from_engine_decoder,
)
from penstock.engine.types import EngineGauges, TokenDelta, TokenOutput
from penstock.text import IncrementalDetokenizer
from penstock.text.detokenizer import plain_texts
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
BYTES = st.one_of(
    st.sampled_from(["héllo", "\u6c34", "\U0001f600", '"\\\n\x07\x7f']).map(str.encode),
    st.binary(max_size=3),
)


class Sent:
    """A gate, and the texts that went through it."""

    def __init__(self, number: int | None = None) -> None:
        self.pieces: list[bytes] = []
        self.gate = Gate(b'<"', b'">', self.pieces.append, number, b'="')

    @property
    def texts(self) -> list[str]:
        return [orjson.loads(self._body(piece)[1:-1]) for piece in self.pieces]

    @staticmethod
    def _body(piece: bytes) -> bytes:
        size, rest = piece.split(b"\r\n", 1)
        assert rest[int(size, 16) :] == b"\r\n"
        return rest[:-2]


def step(data: bytes, time_s: float = 0.0, **more: object) -> TokenOutput:
    return TokenOutput("r", tuple(TokenDelta(byte) for byte in data), time_s, **more)  # type: ignore[arg-type]


def laned(sent: Sent, held: bytes = b"") -> tuple[Lanes, Lane]:
    lanes = Lanes(MAX_FRAME_BYTES)
    lane = Lane(plain_texts(TOKENIZER), sent.gate, held)
    lanes.open("r", lane)
    return lanes, lane


def rows(bodies: list[bytes]) -> list[TokenOutput]:
    """The chunks of what is left."""
    left = []
    for body in bodies:
        message = from_engine_decoder.decode(body)
        assert isinstance(message, TokenOutputs)
        left += message.chunks
    return left


@settings(deadline=None)
@given(st.lists(st.lists(BYTES, min_size=1, max_size=3), max_size=12))
@example([[b"\xf0"], [b"\x9f\x98"], [b"\x80"]])
def test_a_lane_sends_the_texts_of_the_detokenizer(reads: list[list[bytes]]) -> None:
    sent = Sent()
    lanes, lane = laned(sent)
    detokenizer = IncrementalDetokenizer(TOKENIZER, after=0)
    expected = []
    for read in reads:
        left = rows(lanes.feed(b"".join(frame(TokenOutputs((step(data),))) for data in read)))
        taken = read[: len(read) - len(left)]
        text = detokenizer.push_all([byte for data in taken for byte in data])
        expected += [text] if text else []
        assert (sent.texts, lane.held) == (expected, detokenizer.held)
        if left:  # not UTF-8, whatever comes next
            assert not sent.gate.is_open
            rest = [token.token_id for token in left[0].tokens]
            assert not rest or "\ufffd" in detokenizer.push_all(rest)
            break
    assert lane.text == "".join(expected)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("".join(map(chr, range(0x100))))
def test_a_gate_escapes_as_the_json_library_does(text: str) -> None:
    sent = Sent()
    lanes, _ = laned(sent)
    if data := text.encode():
        assert lanes.feed(frame(TokenOutputs((step(data),)))) == []
        assert sent._body(sent.pieces[0]) == b"<" + orjson.dumps(text) + b">"


def test_numbered_frames_count_on() -> None:
    sent = Sent(number=9)
    lanes, _ = laned(sent)
    for data in (b"a", b"\xc3", b"\xa9"):
        lanes.feed(frame(TokenOutputs((step(data),))))
    assert sent.pieces == [b'8\r\n<"9="a">\r\n', 'a\r\n<"10="é">\r\n'.encode()]
    assert sent.gate.number == 11


@settings(deadline=None)
@given(st.data())
def test_a_stream_of_frames_may_be_cut_anywhere(data: st.DataObject) -> None:
    messages = [
        TokenOutputs((step(b"ab"), TokenOutput("other", (TokenDelta(7),), 1.0))),
        Gauges(EngineGauges(sequences_running=3)),
        TokenOutputs((step(b"c"),)),
        TokenOutputs((TokenOutput("other", (), 2.0, finish="stop"), step(b"d", finish="length"))),
    ]
    whole = b"".join(map(frame, messages))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1))))
    sent = Sent()
    lanes, lane = laned(sent)
    left = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        left += lanes.feed(whole[start:end])
    assert lane.text == "abc"
    assert "".join(sent.texts) == "abc"
    decoded = [from_engine_decoder.decode(body) for body in left]
    assert decoded == [TokenOutputs((messages[0].chunks[1],)), messages[1], messages[3]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "chunk",
    [
        step(b"x", finish="stop"),
        step(b"x", error="e"),
        step(b"x", prompt=(TokenDelta(1, -1.0),)),
        step(b"x", first_step_time_s=1.0),
        step(b""),
        TokenOutput("r", (TokenDelta(65, -0.5),), 0.0),
        TokenOutput("r", (TokenDelta(65, None, ((1, -1.0),)),), 0.0),
        TokenOutput("r", (TokenDelta(next(iter(TOKENIZER.control_ids))),), 0.0),
        step(b"\xff"),
    ],
)
def test_what_is_more_than_plain_tokens_closes_the_lane(chunk: TokenOutput) -> None:
    sent = Sent()
    lanes, lane = laned(sent)
    after = step(b"z")
    told = (step(b"y", cached_tokens=5), chunk, after)
    left = lanes.feed(b"".join(frame(TokenOutputs((each,))) for each in told))
    assert rows(left) == [chunk, after]
    assert (sent.texts, lane.num_tokens, sent.gate.is_open) == (["y"], 1, False)


def test_without_lanes_the_bodies_are_those_of_the_frame_reader() -> None:
    data = b"".join(frame(TokenOutputs((step(bytes([letter])),))) for letter in b"abc")
    assert Lanes(MAX_FRAME_BYTES).feed(data) == FrameReader().feed(data)


def test_a_frame_over_the_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="frame of"):
        Lanes(10).feed(b"\x0b\0\0\0")


@given(st.binary(max_size=60))
def test_broken_bodies_are_left_to_the_decoder(body: bytes) -> None:
    lanes, _ = laned(Sent())
    start = frame(TokenOutputs((step(b"a"),)))[4:21]
    for broken in (body, start + body):
        assert lanes.feed(len(broken).to_bytes(4, "little") + broken) == [broken]


def test_a_new_connection_begins_with_a_new_frame() -> None:
    lanes, _ = laned(Sent())
    lanes.feed(b"\x05\0\0\0xx")
    lanes.restart()
    assert lanes.feed(b"\x01\0\0\0y") == [b"y"]


def test_a_client_that_takes_no_more_closes_the_lane() -> None:
    sent = Sent()
    lanes, lane = laned(sent)
    lanes.feed(frame(TokenOutputs((step(b"a"),))))
    sent.gate.close()
    after = step(b"b")
    assert rows(lanes.feed(frame(TokenOutputs((after,))))) == [after]
    assert (sent.texts, lane.text, lane.num_tokens) == (["a"], "a", 1)


def test_a_write_that_fails_closes_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: seen.append(told.exc_type))

    def write(_: bytes) -> None:
        raise OSError

    gate = Gate(b"", b"", write)
    lanes = Lanes(MAX_FRAME_BYTES)
    lanes.open("r", Lane(plain_texts(TOKENIZER), gate))
    lanes.feed(frame(TokenOutputs((step(b"a"),))))
    assert (gate.is_open, seen) == (False, [OSError])


def test_times_between_steps_are_counted_by_bucket() -> None:
    told: list[tuple[list[int], float]] = []
    times = StepTimes((0.5, 2), 10.0, 4.0, lambda counts, total: told.append((counts, total)))
    lanes, lane = laned(Sent())
    lane.time(times)
    for data, time_s in ((b"a", 10.5), (b"bcd", 12.0), (b"e", 14.0), (b"f", 17.0)):
        lanes.feed(frame(TokenOutputs((step(data, time_s),))))
    assert told == [([4, 1, 0], 4.0)]
    times.flush()
    assert told[1:] == [([0, 0, 1], 3.0)]
    assert (times.num_tokens, times.last_s) == (6, 17.0)
