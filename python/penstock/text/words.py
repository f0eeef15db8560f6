"""Encodes ASCII text word by word, and remembers the words.

Most of what the `tokenizers` library does with a text is to split it before merging: it keeps track
of where each character came from, which nobody asks here. ASCII is split by Python's own regular
expressions, made of the model's; other text is the library's affair.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Final

import msgspec
from tokenizers import Tokenizer as Backend
from tokenizers import models

MOST_WORDS: Final = 32768
LONGEST_CHARS: Final = 32
"""Longer words are not remembered: so all of them take some 8 MiB at the most."""

GPT2_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PROPERTY: Final = re.compile(r"\\p\{(\w+)\}")
_IN_ASCII: Final = {
    **{"L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9"},
    **dict.fromkeys(("Lt", "Lm", "Lo", "M"), ""),
    **{"P": r"!-#%-*,-/:;?@\[-\]_{}", "S": r"$+<->\^`|~"},
}
# How the bytes of ASCII that are no visible characters are written in byte-level vocabularies.
_ALPHABET: Final = {**{byte: 0x100 + byte for byte in range(0x21)}, 0x7F: 0x121}
# fmt: off
_SAMPLE: Final = (
    *map(chr, range(128)), " ", " ", "  ", "\n", "\n\n", "\r\n", "\t\t", "a", "b", "The", "word",
    "CAMEL", "Case", "x", "7", "42", "1234567", "...", "!?", "'s", "'S", "'ll", "'RE",
    "don't", "//",
)
# fmt: on


class _Step(msgspec.Struct):
    """One of a tokenizer.json's pre-tokenizers."""

    type: str
    pretokenizers: list[_Step] = []
    pattern: dict[str, str] = {}
    behavior: str = ""
    invert: bool = False
    individual_digits: bool = False
    add_prefix_space: bool = False
    use_regex: bool = True


class AsciiWords:
    """`encode` gives the ids of an ASCII text without added tokens, as the library would. Safe to
    use from several threads."""

    def __init__(self, model: models.BPE, patterns: list[re.Pattern[str]]) -> None:
        self._model = model
        self._patterns = patterns
        self._remembered = lru_cache(MOST_WORDS)(self._find)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self.split(text):
            ids += self._remembered(word) if len(word) <= LONGEST_CHARS else self._find(word)
        return ids

    def split(self, text: str) -> list[str]:
        """The stretches of a text that no merge crosses."""
        words = [text]
        for pattern in self._patterns:
            words = [part for word in words for part in pattern.split(word) if part]
        return words

    def _find(self, word: str) -> tuple[int, ...]:
        return tuple(token.id for token in self._model.tokenize(word.translate(_ALPHABET)))


def ascii_words(backend: Backend) -> AsciiWords | None:
    """For a byte-level tokenizer; None where it does more than to split and to merge, or splits in
    a way that is not known here. That the splits are the library's own is looked at."""
    normal = backend.normalizer
    if normal is not None and normal.__getstate__() != b'{"type":"NFC"}':
        return None
    model, splitter = backend.model, backend.pre_tokenizer
    if splitter is None or not isinstance(model, models.BPE) or model.dropout is not None:
        return None
    if backend.truncation is not None or backend.padding is not None:
        return None
    try:
        step = msgspec.json.decode(splitter.__getstate__(), type=_Step)
        words = AsciiWords(model, [_compiled(pattern) for pattern in _patterns(step)])
    except (msgspec.DecodeError, LookupError, re.error):
        return None
    sample = "".join(random.Random(1).choices(_SAMPLE, k=1500))
    theirs = [piece for piece, _ in splitter.pre_tokenize_str(sample)]
    ours = [word.translate(_ALPHABET) for word in words.split(sample)]
    return words if ours == theirs else None


def _patterns(step: _Step) -> list[str]:
    """What a pre-tokenizer splits by, one after the other. Raises LookupError for another kind."""
    match step:
        case _Step("Sequence", steps):
            return [pattern for inner in steps for pattern in _patterns(inner)]
        case _Step("Split", behavior="Isolated", invert=False):
            return [step.pattern["Regex"]]
        case _Step("Digits"):
            return [r"\p{N}" if step.individual_digits else r"\p{N}+"]
        case _Step("ByteLevel", add_prefix_space=False):
            return [GPT2_WORDS] if step.use_regex else []
    raise LookupError(step.type)


def _compiled(pattern: str) -> re.Pattern[str]:
    """What `pattern` finds in ASCII, as one group. Raises KeyError, re.error."""
    made, at = "", 0
    for found in _PROPERTY.finditer(pattern):
        made += pattern[at : found.start()]
        chars, at = _IN_ASCII[found[1]], found.end()
        made += chars if _in_class(pattern, found.start()) else f"[{chars}]"
    return re.compile(f"({made}{pattern[at:]})", re.ASCII)


def _in_class(pattern: str, at: int) -> bool:
    """Whether a place is within `[...]`."""
    inside = False
    escaped = False
    for char in pattern[:at]:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "[]":
            inside = char == "["
    return inside
