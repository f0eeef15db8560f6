"""A tokenizer.json, with the tokens that the files beside it declare."""

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
from penstock.text.tokenizers.panic_guard import loaded

# What a part of the file that makes the library panic does so on.
TRIAL_TEXT: Final = "Hello, world! 123 \u00e9\u4f60\U0001f600\n"


@dataclass(frozen=True, slots=True)
class TokenizerJson:
    """`byte_level`: its tokens are written in GPT-2's byte alphabet. `space_prefix`: a space goes
    before text."""

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
    """What must be known of a tokenizer.json beside what the library does with it."""

    normalizer: _Section | None = None
    pre_tokenizer: _Section | None = None
    decoder: _Section | None = None

    def sections(self) -> list[_Section]:
        tops = (self.normalizer, self.pre_tokenizer, self.decoder)
        return [section for top in tops if top is not None for section in top.walk()]


def read_tokenizer_json(files: TokenizerFiles) -> TokenizerJson:
    """Whole texts are encoded, whatever truncation or padding the file has from a training run.
    Raises ModelError naming the file, or the token whose id would not be the model's."""

    def read() -> tuple[Backend, list[_Section]]:
        raw = files.tokenizer.read_bytes()
        sections = msgspec.json.decode(raw, type=_Shape).sections()
        backend = Backend.from_buffer(raw)
        backend.no_truncation()
        backend.no_padding()
        with contextlib.suppress(Exception):  # some vocabularies lack what the text needs
            backend.encode(TRIAL_TEXT, add_special_tokens=True)
        return backend, sections

    backend, sections = loaded(f"{files.tokenizer} cannot be read", read)
    _add_declared(backend, files)
    return TokenizerJson(
        backend,
        byte_level=any(section.type == "ByteLevel" for section in sections),
        space_prefix=any(_prefixes(section) for section in sections),
    )


def frame(backend: Backend) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after a text."""
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
    """Add the tokens that tokenizer.json does not have as such. The library numbers new ones from
    the end of the vocabulary on; one that the model has no row for stays plain text."""
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
