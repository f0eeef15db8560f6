"""One of several forms, by how a call begins."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.text.channels.calls import CallBody, CallReader
from penstock.text.channels.reader import Reading


@dataclass(frozen=True, slots=True)
class ChooseCalls:
    """`usual` is what the family was trained to write; `others`: by the first character."""

    usual: CallBody
    others: tuple[tuple[str, CallBody], ...]

    def marks(self) -> tuple[str, ...]:
        found = self.usual.marks()
        for _, body in self.others:
            found += body.marks()
        return found

    def read(self, io: CallReader) -> Reading[None]:
        first = yield from io.reader.peek()
        yield from dict(self.others).get(first, self.usual).read(io)
