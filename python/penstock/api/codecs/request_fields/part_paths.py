"""Where a client wrote the parts of its messages, whose order and number the dialog changes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialog import Audio, File, Image, Message, Part, Video


class PartPaths:
    """Filled while parts are decoded. Only media and files can be at fault later on."""

    def __init__(self) -> None:
        self._found: list[tuple[Part, str]] = []

    def note(self, part: Part, path: str) -> None:
        """`path`: of the part, in the words of the client. What is noted first counts."""
        if isinstance(part, Image | Audio | Video | File):
            self._found.append((part, path))

    def of(self, messages: Sequence[Message]) -> tuple[tuple[str, ...], ...]:
        """As `GenerateRequest.part_paths`; nothing where there are no media. The messages hold the
        very
        parts that were noted."""
        if not self._found:
            return ()
        paths = {id(part): path for part, path in reversed(self._found)}
        return tuple(tuple(paths.get(id(p), "messages") for p in m.parts) for m in messages)
