"""A gate's output equals, byte for byte, the dialect's encoder's output for the same deltas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._native import Gate, Lane, Lanes
from penstock.api.codecs.chat.encode import ChatStream
from penstock.api.codecs.completions.encode import CompletionStream
from penstock.api.codecs.dialect import AnswerIdentity, StreamEncoder
from penstock.api.codecs.messages.stream import MessageStream
from penstock.api.codecs.responses import Resource, ResponseIdentity, ResponseStream, decode
from penstock.dialog import GenerateRequest, PartStarted, RunStarted, TextDelta
from penstock.engine.ipc.messages import MAX_FRAME_BYTES, TokenOutputs, frame
from penstock.engine.types import TokenDelta, TokenOutput
from penstock.text.detokenizer import plain_texts
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer

TEXTS = plain_texts(tiny_tokenizer())
IDENTITY = AnswerIdentity("answer-1", "req_1")
RESPONSE = ResponseIdentity("resp_" + "0" * 32, "m", decode(b'{"input":"x"}').echoed)
REQUEST = GenerateRequest(prompt="x")
START = (RunStarted("m", 1, 3), PartStarted(0, 0, "text"), TextDelta(0, 0, "a"))
Begin = Callable[[GenerateRequest], StreamEncoder]


def chat(request: GenerateRequest) -> StreamEncoder:
    return begun(ChatStream(IDENTITY, request))


def completion(request: GenerateRequest) -> StreamEncoder:
    return begun(CompletionStream(IDENTITY, request))


def message(request: GenerateRequest) -> StreamEncoder:
    return begun(MessageStream(IDENTITY, request))


def response(request: GenerateRequest) -> StreamEncoder:
    resource = Resource(RESPONSE)
    for event in START:
        resource.add(event)
    return begun(ResponseStream(resource))


def begun(encoder: StreamEncoder) -> StreamEncoder:
    """Advance the encoder into the middle of a text."""
    for event in START:
        encoder.encode(event)
    return encoder


def gated(encoder: StreamEncoder, texts: list[str]) -> list[bytes]:
    """Return the HTTP chunks of texts that go through a gate."""
    around = encoder.around(0, 0)
    assert around is not None
    written: list[bytes] = []
    numbers = () if around.numbered is None else (around.numbered.first, around.numbered.between)
    gate = Gate(around.before, around.after, written.append, *numbers)
    lanes = Lanes(MAX_FRAME_BYTES)
    lanes.open("r", Lane(TEXTS, gate))
    for text in texts:
        tokens = tuple(TokenDelta(byte) for byte in text.encode())
        assert lanes.feed(frame(TokenOutputs((TokenOutput("r", tokens, 0.0),)))) == []
    if around.numbered is not None:
        around.numbered.go_on(gate.number)
    return written


@pytest.mark.parametrize("begin", [chat, completion, message, response])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=4))
def test_a_gate_writes_what_the_encoder_does(begin: Begin, texts: list[str]) -> None:
    through, general = begin(REQUEST), begin(REQUEST)
    written = gated(through, texts)
    frames = [general.encode(TextDelta(0, 0, text)) for text in texts]
    assert written == [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in frames]
    last = TextDelta(0, 0, "z")
    assert through.encode(last) == general.encode(last)


@pytest.mark.parametrize("begin", [chat, completion])
def test_there_is_no_gate_for_texts_with_logprobs(begin: Begin) -> None:
    assert begin(GenerateRequest(prompt="x", top_logprobs=0)).around(0, 0) is None


def test_a_messages_stream_has_a_gate_in_an_open_block_only() -> None:
    encoder = MessageStream(IDENTITY, REQUEST)
    for event in START[:2]:
        encoder.encode(event)
    assert encoder.around(0, 0) is None
    encoder.encode(START[2])
    assert encoder.around(0, 0) is not None
