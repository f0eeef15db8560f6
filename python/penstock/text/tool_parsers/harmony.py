"""Parses Harmony, the answer format of gpt-oss.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
    to=functions.f <|constrain|>json<|message|>{...}<|call|>
    ... <|channel|>final<|message|>...

Messages in the `analysis` channel are reasoning. Messages in the `final` channel, and messages in
`commentary` without a recipient, are the answer. A message to a function is a tool call.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.text.tool_parsers.call_format import CallReader
from penstock.text.tool_parsers.json_text import pass_container
from penstock.text.tool_parsers.output_builder import OutputBuilder
from penstock.text.tool_parsers.stream_reader import Malformed, StreamRead, pass_text

MESSAGE: Final = "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
MAX_HEADER_CHARS: Final = 512

_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser:
    """Parses the messages of an answer. The prompt ends with `<|start|>assistant`."""

    def __init__(self, io: CallReader, output: OutputBuilder) -> None:
        self._io = io
        self._output = output

    def run(self) -> StreamRead[None]:
        reader = self._io.reader
        while (yield from reader.need(1)):
            reader.hold()
            try:
                header, _ = yield from reader.read_until((MESSAGE,), MAX_HEADER_CHARS)
            except Malformed:  # not a message: treat it as text
                reader.rewind()
                reader.release()
                yield from self._text()
                continue
            reader.release()
            yield from self._message(header)

    def _message(self, header: str) -> StreamRead[None]:
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        if recipient is not None and self._io.knows(recipient[1]):
            yield from self._call(recipient[1])
        elif channel is not None and channel[1] == "analysis":
            yield from self._analysis()
        else:
            yield from self._text()

    def _analysis(self) -> StreamRead[None]:
        reader, output = self._io.reader, self._output
        output.begin_reasoning()
        try:
            yield from pass_text(reader, ENDS, output.add_reasoning)
        except Malformed:
            output.add_reasoning(reader.advance(len(reader.window())))
            return
        output.end_reasoning()

    def _text(self) -> StreamRead[None]:
        reader = self._io.reader
        try:
            yield from pass_text(reader, ENDS, self._emit_text)
        except Malformed:
            self._emit_text(reader.advance(len(reader.window())))

    def _emit_text(self, text: str) -> None:
        self._output.add_text(text, self._io.reader.position)

    def _call(self, name: str) -> StreamRead[None]:
        reader, io = self._io.reader, self._io
        io.begin(name)
        try:
            yield from reader.spaces()
            if (yield from reader.peek()) == "{":
                yield from pass_container(reader, io.arguments)
                io.end()
                yield from reader.spaces()
                yield from reader.literal(*ENDS)
            else:
                yield from reader.expect(*ENDS)
                io.arguments("{}")
                io.end()
        except Malformed:
            io.abandon()
        reader.release()
