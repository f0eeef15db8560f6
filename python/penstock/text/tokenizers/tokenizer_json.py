"""Reads a tokenizer.json and adds the tokens that the other tokenizer files declare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import TokenizerFiles
from penstock.text.tokenizers.backend import SPACE
from penstock.text.tokenizers.panic_guard import load_or_model_error

# Encoded once when a file is loaded: a faulty file makes the library panic here, not in a request.
TRIAL_TEXT: Final = "Hello, world! 123 \u00e9\u4f60\U0001f600\n"


@dataclass(frozen=True, slots=True)
class TokenizerJson:
    """A loaded tokenizer.json.

    - `byte_level`: tokens are written in GPT-2's byte alphabet.
    - `space_prefix`: a space is prepended to text.
    """

    backend: Backend
    byte_level: bool
    space_prefix: bool


class _Section(msgspec.Struct):
    """A normalizer, pre-tokenizer, decoder or post-processor of a tokenizer.json."""

    type: str = ""
    normalizers: list[_Section] = []
    pretokenizers: list[_Section] = []
    decoders: list[_Section] = []
    processors: list[_Section] = []
    add_prefix_space: bool | None = None
    prepend_scheme: str | None = None
    prepend: str | None = None

    def walk(self) -> Iterable[_Section]:
        yield self
        for kids in (self.normalizers, self.pretokenizers, self.decoders, self.processors):
            for kid in kids:
                yield from kid.walk()


class _Shape(msgspec.Struct):
    """The sections of a tokenizer.json that this module reads itself, in addition to the
    `tokenizers` library."""

    normalizer: _Section | None = None
    pre_tokenizer: _Section | None = None
    decoder: _Section | None = None

    def sections(self) -> list[_Section]:
        tops = (self.normalizer, self.pre_tokenizer, self.decoder)
        return [section for top in tops if top is not None for section in top.walk()]


def read_tokenizer_json(files: TokenizerFiles) -> TokenizerJson:
    """Read a tokenizer.json. Truncation and padding from a training run are ignored.

    Raises ModelError that names the file, also if a declared token would get a wrong id.
    """

    def read() -> tuple[Backend, list[_Section]]:
        raw = files.tokenizer.read_bytes()
        sections = msgspec.json.decode(raw, type=_Shape).sections()
        backend = Backend.from_buffer(raw)
        backend.no_truncation()
        backend.no_padding()
        with contextlib.suppress(Exception):  # some vocabularies lack tokens for the text
            backend.encode(TRIAL_TEXT, add_special_tokens=True)
        return backend, sections

    backend, sections = load_or_model_error(f"{files.tokenizer} cannot be read", read)
    _add_declared(backend, files)
    return TokenizerJson(
        backend,
        byte_level=any(section.type == "ByteLevel" for section in sections),
        space_prefix=any(_prefixes(section) for section in sections),
    )


def special_tokens_around(backend: Backend) -> tuple[list[int], list[int]]:
    """Return the tokens that the post-processor adds before and after a text."""
    encoding = backend.encode("a", add_special_tokens=True)
    ids: list[int] = encoding.ids
    own = [index for index, added in enumerate(encoding.special_tokens_mask) if not added]
    return (ids[: own[0]], ids[own[-1] + 1 :]) if own else (ids, [])


def _prefixes(section: _Section) -> bool:
    if section.type == "Prepend":
        return section.prepend == SPACE
    if section.type == "Metaspace":
        return section.prepend_scheme in ("first", "always") or section.add_prefix_space is True
    return False


def _add_declared(backend: Backend, files: TokenizerFiles) -> None:
    """Add declared tokens that tokenizer.json lacks. A token beyond the model's embedding rows
    stays plain text.

    The library numbers new tokens from the end of the vocabulary. Raises ModelError if that number
    is not the declared id.
    """
    present: dict[int, AddedToken] = backend.get_added_tokens_decoder()
    contents = {token.content for token in present.values()}
    next_id = max([backend.get_vocab_size(with_added_tokens=False), *(i + 1 for i in present)])
    missing = []
    for token in files.declared:
        index: int | None = backend.token_to_id(token.content)
        new = index is None
        if index is None:
            index = next_id
        wanted = index if token.id is None else token.id
        if not token.content or token.content in contents or wanted >= files.vocab_size:
            continue
        if index != wanted:
            raise ModelError(
                f"{files.tokenizer.name} has no token {token.content!r}, which the files beside it"
                f" declare as {wanted}; it would be {index}"
            )
        next_id += new
        missing.append(
            AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
            )
        )
    backend.add_tokens(missing)
