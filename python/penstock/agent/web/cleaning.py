"""Cleans untrusted text from the web."""

from __future__ import annotations

import html
import re
from typing import Final

MAX_TITLE_CHARS: Final = 200
MAX_DESCRIPTION_CHARS: Final = 500

# Characters that hide text or change the order in which it is shown: control characters except
# newline and tab, bidirectional controls, byte order marks, unpaired surrogates, language tags.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_TAG: Final = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_BLANK_LINES: Final = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_LINE_ENDS: Final = re.compile(r"\r\n?|[\u2028\u2029]")


def clean_text(text: str, max_chars: int) -> str:
    """Return the beginning of a text without hidden characters, with at most one blank line in a
    row. `max_chars`: maximum length; a longer text is cut."""
    # Cut first, so that the cost does not depend on the length of the text.
    text = _LINE_ENDS.sub("\n", text[: 2 * max_chars])
    text = _BLANK_LINES.sub("\n\n", _HIDDEN.sub("", text)).strip()
    return text[:max_chars]


def clean_line(text: str, max_chars: int) -> str:
    """Return the beginning of a text as one line, without hidden characters."""
    return " ".join(clean_text(text, 2 * max_chars).split())[:max_chars]


def clean_snippet(text: str, max_chars: int) -> str:
    """Return the text of an HTML fragment, such as the description of a search result, as one
    line."""
    return clean_line(html.unescape(_TAG.sub("", text[: 8 * max_chars])), max_chars)
