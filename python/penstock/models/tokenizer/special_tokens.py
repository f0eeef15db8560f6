"""Reads the special and added tokens that a folder declares in addition to tokenizer.json.

Order and precedence are those of transformers: special_tokens_map.json and added_tokens.json are
read only if tokenizer_config.json does not list the added tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from penstock.models.tokenizer.tokenizer_data import DeclaredToken
from penstock.quant.json_file import read_json

HARMONY_END_OF_TURN: Final = frozenset({"<|call|>", "<|return|>"})
"""The two tokens that end a turn of gpt-oss. No other vocabulary has both."""


class _Token(msgspec.Struct):
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    special: bool = False


_Named: TypeAlias = str | _Token | None
_NAMES: Final = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)


class _Names(msgspec.Struct):
    bos_token: _Named = None
    eos_token: _Named = None
    unk_token: _Named = None
    sep_token: _Named = None
    pad_token: _Named = None
    cls_token: _Named = None
    mask_token: _Named = None
    additional_special_tokens: list[str | _Token] | None = None
    extra_special_tokens: list[str | _Token] | dict[str, str | _Token] | None = None

    def named(self) -> list[tuple[str, str | _Token]]:
        """Return (role, token) of the tokens with a role such as bos or eos, in transformers'
        order."""
        pairs = [(name, getattr(self, name)) for name in _NAMES]
        return [(name, token) for name, token in pairs if token is not None]

    def others(self) -> Iterator[str | _Token]:
        """Yield the special tokens without a role such as bos or eos."""
        extra = self.extra_special_tokens or self.additional_special_tokens or ()
        yield from extra.values() if isinstance(extra, dict) else extra


class _Config(_Names):
    added_tokens_decoder: dict[str, _Token] | None = None


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens of a folder.

    - `bos`, `eos`: the text of the begin and end tokens, for chat templates.
    - `pad`: the text of the token of padding.
    - `declared`: all declared tokens, in the order in which those missing from tokenizer.json are
      added.
    """

    bos: str | None
    eos: str | None
    pad: str | None
    declared: tuple[DeclaredToken, ...]


def read_special_tokens(folder: Path) -> SpecialTokens:
    """Read the special tokens of a folder. Raises ModelError naming the file at fault."""
    path = folder / "tokenizer_config.json"
    config = read_json(path, _Config) if path.exists() else _Config()
    if config.added_tokens_decoder is not None:
        names, others = dict(config.named()), list(config.others())
        listed = _listed(config.added_tokens_decoder)
    else:
        path = folder / "special_tokens_map.json"
        older = read_json(path, _Names) if path.exists() else _Names()
        names = dict(config.named()) | dict(older.named())
        names = {name: names[name] for name in _NAMES if name in names}
        others = [*config.others(), *older.others()]
        listed = _older(folder, {_content(token) for token in (*names.values(), *others)})
    declared = [*listed, *map(_special, names.values()), *map(_special, others)]
    first: dict[str, DeclaredToken] = {}
    for token in declared:
        first.setdefault(token.content, token)
    roles = ("bos_token", "eos_token", "pad_token")
    bos, eos, pad = (_content(names[name]) if name in names else None for name in roles)
    return SpecialTokens(bos, eos, pad, tuple(first.values()))


def _listed(tokens: dict[str, _Token]) -> list[DeclaredToken]:
    """Return the tokens of `added_tokens_decoder`, ordered by id."""
    numbered = [(_number(key), token) for key, token in tokens.items()]
    return [
        _declared(token, index, special=token.special)
        for index, token in sorted(numbered, key=lambda pair: pair[0])
    ]


def _number(key: str) -> int:
    """Return the id that a key spells, or -1, which is not a valid id, if the key is not a
    number."""
    return int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1


def _older(folder: Path, special: set[str]) -> list[DeclaredToken]:
    path = folder / "added_tokens.json"
    ids = read_json(path, dict[str, int]) if path.exists() else {}
    return [
        _declared(_Token(content), index, special=content in special)
        for content, index in sorted(ids.items(), key=lambda pair: pair[1])
    ]


def _special(token: str | _Token) -> DeclaredToken:
    return _declared(_Token(token) if isinstance(token, str) else token, None, special=True)


def _declared(token: _Token, index: int | None, *, special: bool) -> DeclaredToken:
    return DeclaredToken(
        content=token.content,
        id=index,
        special=special,
        normalized=not special if token.normalized is None else token.normalized,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
    )


def _content(token: str | _Token) -> str:
    return token.content if isinstance(token, _Token) else token
