"""The places in the body of media and files: a codec changes the order and number of parts."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialog import Audio, File, Image, Message, Part, Video


class PartPaths:
    """Filled while parts are decoded. Only media and files can cause errors later."""

    def __init__(self) -> None:
        self._found: list[tuple[Part, str]] = []

    def note(self, part: Part, path: str) -> None:
        """Remember the place of a part in the body. The first one noted counts."""
        if isinstance(part, Image | Audio | Video | File):
            self._found.append((part, path))

    def of(self, messages: Sequence[Message]) -> tuple[tuple[str, ...], ...]:
        """Return `GenerateRequest.part_paths`, empty if there are no media.

        The messages must hold the very objects that were noted.
        """
        if not self._found:
            return ()
        paths = {id(part): path for part, path in reversed(self._found)}
        return tuple(tuple(paths.get(id(p), "messages") for p in m.parts) for m in messages)
