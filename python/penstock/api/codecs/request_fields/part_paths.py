"""Records where media and files are in the body, because decoding reorders and joins parts."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialog import Audio, File, Image, Message, Part, Video


class PartPaths:
    """Maps media and file parts to their paths in one body; filled while the body is decoded. Other
    parts cannot fail later and are not recorded."""

    def __init__(self) -> None:
        self._found: list[tuple[Part, str]] = []

    def note(self, part: Part, path: str) -> None:
        """Record the path of a media or file part in the body. The first path noted for a part
        counts."""
        if isinstance(part, Image | Audio | Video | File):
            self._found.append((part, path))

    def of(self, messages: Sequence[Message]) -> tuple[tuple[str, ...], ...]:
        """Return the paths of the parts of each message (`GenerateRequest.part_paths`); () if the
        body has no media or files.

        The messages must contain the same part objects that were noted; all other parts get the
        path `messages`.
        """
        if not self._found:
            return ()
        paths = {id(part): path for part, path in reversed(self._found)}
        return tuple(tuple(paths.get(id(p), "messages") for p in m.parts) for m in messages)
