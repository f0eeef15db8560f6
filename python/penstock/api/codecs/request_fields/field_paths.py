"""How clients write the fields that the dialog has under names of its own, for errors that name
one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import RunFailed


@dataclass(slots=True)
class FieldPaths:
    """Filled while a body is decoded. What is not noted is written as the dialog has it."""

    _written: dict[str, str] = field(default_factory=dict)

    def note(self, named: str, written: str) -> None:
        """`written`: the path of the field that the dialog has `named`, as the client wrote it."""
        self._written[named] = written

    def note_schema(self, index: int, written: str) -> None:
        """The same of the schema of a function; the dialog counts functions alone. Where no other
        field asks for a grammar, it is that of calls."""
        self.note(f"tools[{index}].function.parameters", written)
        self.note("grammar", written.partition("[")[0])

    def note_hosted(self, written: str) -> None:
        """The first field that asks for tools of the server."""
        self._written.setdefault("hosted", written)

    def rewrite_failure(self, event: RunFailed) -> RunFailed:
        """The failure, which names its field as the client wrote it. What is wrong with a request
        is told with that name, which is all that an envelope without `param` has of it."""
        named = event.field
        if named is None:
            return event
        written = self._of(named)
        message = event.message if written is None else _reworded(event.message, named, written)
        place = written or named
        if event.status == InvalidRequest.status and not _says(message, place):
            message = f"{place}: {message}"
        if (place, message) == (named, event.message):
            return event
        return msgspec.structs.replace(event, field=place, message=message)

    def _of(self, named: str) -> str | None:
        """None where it is not noted."""
        head, bracket, index = named.partition("[")
        if named in self._written or not bracket:
            return self._written.get(named)
        # Messages are counted otherwise by clients; `GenerateRequest.part_paths` names their parts.
        if head not in self._written or head == "messages":
            return self._written.get(head)
        return f"{self._written[head]}[{index}"


def _says(message: str, name: str) -> bool:
    """Whether the name stands in a message, and not as part of another."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message) is not None


def _reworded(message: str, named: str, written: str) -> str:
    """A message that begins with the name of its field, or quotes it."""
    name = re.escape(named)
    return re.sub(rf"^{name}(?!\w)|(?<=`){name}(?=`)", lambda _: written, message)
