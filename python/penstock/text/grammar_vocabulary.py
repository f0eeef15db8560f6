"""A model's tokens as grammars see them: faithful to bytes.

A grammar is about bytes. Text that it forces must be cut into tokens of exactly these bytes: no
normalizer may change it, and no part of it may be taken for a control token, or for any other token
that the tokenizer looks for before it cuts text.
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
"""The only normalizer that changes no bytes: it spells a space as the vocabulary does."""


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary that the engine needs to follow a grammar. Takes a part of a second."""
    return Vocabulary(
        _faithful(tokenizer.serialize()),
        tuple(sorted(tokenizer.stop_ids)),
        tuple(map(tokenizer.token_bytes, range(tokenizer.vocab_size))),
        tuple(sorted({*reserved_tokens(tokenizer).values(), *tokenizer.stop_ids})),
    )


def reserved_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """text -> id of the tokens that no text in a grammar is taken for: control tokens, and others
    that steer an answer, such as the tags around a call."""
    return {
        text: index
        for text, index in tokenizer.added_tokens.items()
        if text in tokenizer.control_tokens or _steers(text)
    }


def _steers(text: str) -> bool:
    return (text.startswith("<|") and text.endswith("|>")) or any(text in m for m in _marks())


@cache
def _marks() -> frozenset[str]:
    """The marks that any family of models writes around calls and reasoning."""
    marks = {mark for syntax in TOOL_SYNTAXES.values() for mark in syntax.marks()}
    return frozenset(marks.union(*((tags.open, tags.close) for tags in REASONING_SYNTAXES)))


def _faithful(tokenizer_json: str) -> str:
    """The same vocabulary without what changes text, or finds tokens in it before it is cut."""
    whole: dict[str, Any] = json.loads(tokenizer_json)
    whole |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    whole["normalizer"] = _spelling(whole.get("normalizer"))
    whole["pre_tokenizer"] = _without_prefix(whole.get("pre_tokenizer"))
    return json.dumps(whole, ensure_ascii=False)


def _spelling(normalizer: Any) -> Any:
    """A normalizer without the steps that change bytes."""
    if not isinstance(normalizer, dict):
        return None
    if normalizer.get("type") == "Sequence":
        kept = [part for part in map(_spelling, normalizer.get("normalizers", [])) if part]
        return kept[0] if kept else None
    return normalizer if normalizer == _SPACES else None


def _without_prefix(part: Any) -> Any:
    """A pre-tokenizer that puts no space before a text."""
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
