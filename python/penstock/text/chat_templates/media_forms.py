"""Finds the forms in which a chat template shows images, recordings and videos, and writes media in
these forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import InvalidRequest
from penstock.models.media.prepared import MediaKind
from penstock.text.chat_templates.capabilities import Render, TemplateCapabilities, probe_result
from penstock.text.chat_templates.media_marks import MARKS, MARKS_ON_LINES

ContentPart = dict[str, Any]
"""An entry of `content` in the `transformers` format, such as {"type": "image"}."""
_TEXT: Final = "probe-user"


@dataclass(frozen=True, slots=True)
class MediaForms:
    """Writes media as a chat template expects.

    - `placeholders`: for each kind, the text that marks an item in the rendered prompt.
    - `parts`: for each kind that the template writes itself, the content part of an item. Any other
      kind is written into the text as its placeholder.
    - `in_results`: the kinds that the template shows in tool results.
    """

    placeholders: Mapping[MediaKind, str]
    parts: Mapping[MediaKind, ContentPart]
    in_results: frozenset[MediaKind]

    def content(self, text: str, kinds: Sequence[MediaKind]) -> str | list[ContentPart]:
        """Return the content of a message. `kinds`: the kind of each item by its number."""
        found = [kinds[int(mark[1])] for mark in MARKS.finditer(text)]
        if not any(kind in self.parts for kind in found):
            return self._with_placeholders(text, kinds)
        return list(self._content_parts(text, kinds))

    def _with_placeholders(self, text: str, kinds: Sequence[MediaKind]) -> str:
        return MARKS.sub(lambda mark: self.placeholders[kinds[int(mark[1])]], text)

    def _content_parts(self, text: str, kinds: Sequence[MediaKind]) -> Iterator[ContentPart]:
        """Yield texts and items in their order. The line breaks around a mark separated the parts
        in the text."""
        for index, piece in enumerate(MARKS_ON_LINES.split(text)):
            if index % 2 == 0:
                if piece:
                    yield {"type": "text", "text": piece}
                continue
            kind = kinds[int(piece)]
            part = self.parts.get(kind)
            yield part if part is not None else {"type": "text", "text": self.placeholders[kind]}


def probe_media_forms(
    render: Render, capabilities: TemplateCapabilities, placeholders: Mapping[MediaKind, str]
) -> MediaForms:
    """Return the forms of a template: render messages with an item in each of the usual forms, and
    look for exactly one placeholder.

    `render` raises InvalidRequest if the template refuses a message.
    """

    def shows(kind: MediaKind, messages: list[dict[str, Any]]) -> bool:
        try:
            text = render(messages, None)
        except InvalidRequest:
            return False
        return _TEXT in text and text.count(placeholders[kind]) == 1

    parts: dict[MediaKind, ContentPart] = {}
    in_results = set()
    for kind, placeholder in placeholders.items():
        content: str | list[ContentPart] = f"{placeholder}\n{_TEXT}"
        for part in _candidate_parts(kind):
            if shows(kind, [{"role": "user", "content": [part, {"type": "text", "text": _TEXT}]}]):
                parts[kind] = part
                content = [part, {"type": "text", "text": _TEXT}]
                break
        if capabilities.results and shows(kind, probe_result(capabilities, content)):
            in_results.add(kind)
    return MediaForms(placeholders, parts, frozenset(in_results))


def _candidate_parts(kind: MediaKind) -> tuple[ContentPart, ...]:
    """Return the content parts that templates recognize as an item, the most common first."""
    return (
        {"type": kind},
        {"type": kind, kind: ""},
        {"type": f"{kind}_url", f"{kind}_url": ""},
        {"type": f"input_{kind}", f"input_{kind}": ""},
    )
