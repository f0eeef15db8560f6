"""Converts a model's tokenizer to the byte-exact vocabulary that grammars need.

A grammar works on bytes. Text that a grammar forces must be split into tokens with exactly the same
bytes: no normalizer may change the text, and no part of the text may become a control token or
another added token that the tokenizer searches for before it splits text.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from penstock.grammar.vocabulary import Vocabulary
from penstock.text.tokenizers.backend import SPACE
from penstock.text.tokenizers.tokenizer import Tokenizer
from penstock.text.tool_parsers.tool_syntaxes import REASONING_SYNTAXES, TOOL_SYNTAXES

_SPACES: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
"""The only normalizer that is kept. It replaces a space by the character that the vocabulary uses
for spaces, so tokens still have the bytes of the text."""


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary that the engine needs for grammars. The call takes a fraction of a
    second."""
    return Vocabulary(
        _byte_exact(tokenizer.serialize()),
        tuple(sorted(tokenizer.stop_ids)),
        tuple(map(tokenizer.token_bytes, range(tokenizer.vocab_size))),
        tuple(sorted({*reserved_tokens(tokenizer).values(), *tokenizer.stop_ids})),
    )


def reserved_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens that plain text in a grammar never matches, as text -> id: control tokens
    and other added tokens that structure an answer, e.g. the tags around a tool call."""
    return {
        text: index
        for text, index in tokenizer.added_tokens.items()
        if text in tokenizer.control_tokens or _steers(text)
    }


def _steers(text: str) -> bool:
    return (text.startswith("<|") and text.endswith("|>")) or any(text in m for m in _marks())


@cache
def _marks() -> frozenset[str]:
    """Return the literal texts that model families write around tool calls and reasoning."""
    marks = {mark for syntax in TOOL_SYNTAXES.values() for mark in syntax.marks()}
    return frozenset(marks.union(*((tags.open, tags.close) for tags in REASONING_SYNTAXES)))


def _byte_exact(tokenizer_json: str) -> str:
    """Return a tokenizer.json without the sections that change text or search it for added
    tokens."""
    whole: dict[str, Any] = json.loads(tokenizer_json)
    whole |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    whole["normalizer"] = _space_normalizer(whole.get("normalizer"))
    whole["pre_tokenizer"] = _without_prefix(whole.get("pre_tokenizer"))
    return json.dumps(whole, ensure_ascii=False)


def _space_normalizer(normalizer: Any) -> Any:
    """Return `_SPACES` if a normalizer contains it, else None. All other steps are removed."""
    if not isinstance(normalizer, dict):
        return None
    if normalizer.get("type") == "Sequence":
        kept = [part for part in map(_space_normalizer, normalizer.get("normalizers", [])) if part]
        return kept[0] if kept else None
    return normalizer if normalizer == _SPACES else None


def _without_prefix(part: Any) -> Any:
    """Return a pre-tokenizer that does not prepend a space."""
    if not isinstance(part, dict):
        return part
    changed = dict(part)
    if "prepend_scheme" in part:
        changed["prepend_scheme"] = "never"
    if "add_prefix_space" in part:
        changed["add_prefix_space"] = False
    if isinstance(inner := part.get("pretokenizers"), list):
        changed["pretokenizers"] = [_without_prefix(one) for one in inner]
    return changed
