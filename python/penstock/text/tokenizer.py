"""Text to token ids and back to bytes, with the vocabulary of the loaded model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from penstock.base.errors import ModelError
from penstock.models.tokenizer_data import (
    TextParts,
    TokenizerData,
    TokenizerFiles,
    TokenizerSource,
)
from penstock.text.build import SPACE, adds_space_prefix, build_backend, wants_bos
from penstock.text.pieces import RememberedPieces, stand_alone

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
)
"""Control tokens that end an answer in any model whose vocabulary has them."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _TokenBytes(dict[int, bytes]):
    """Token id -> bytes, found out when first asked for."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, token_id: int) -> bytes:
        made = self[token_id] = self._make(token_id)
        return made


class _TokenTexts(dict[int, str | None]):
    """Token id -> its text, None where its bytes are not whole characters or it is a control
    token; found out when first asked for."""

    def __init__(self, bytes_of: Mapping[int, bytes], control_ids: frozenset[int]) -> None:
        self._bytes_of = bytes_of
        self._control_ids = control_ids

    def __missing__(self, token_id: int) -> str | None:
        text = None
        if token_id not in self._control_ids:
            with contextlib.suppress(UnicodeDecodeError):
                text = self._bytes_of[token_id].decode()
        self[token_id] = text
        return text


class Tokenizer:
    """Encodes text, tells the bytes of a token, and knows the control tokens.

    Attributes: `vocab_size`; `bos_id`, `eos_id` (None where the model has none); `stop_ids`, all
    tokens that end an answer; `control_tokens`, text -> id of the tokens that steer a model and
    never are part of a text; `added_tokens`, those and others that are never cut in two;
    `bytes_of`, what `token_bytes` tells as a mapping; `text_of`, the text of a token, None where it
    has none of its own (control tokens, parts of a character); `space_prefix`, whether encoding
    puts a space before text (SentencePiece models). Safe to use from several threads.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        byte_level: bool,
        space_prefix: bool = False,
        add_bos: bool = False,
        add_eos: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        stop_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self._byte_level = byte_level
        self._add_bos = add_bos and bos_id is not None
        self._add_eos = add_eos and eos_id is not None
        self.space_prefix = space_prefix
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self.added_tokens = {token.content: index for index, token in added.items()}
        self.control_tokens = {t.content: index for index, t in added.items() if t.special}
        self.control_ids = frozenset(self.control_tokens.values())
        ends = {self.control_tokens[t] for t in END_OF_TURN if t in self.control_tokens}
        ends.update(stop_ids)
        if eos_id is not None:
            ends.add(eos_id)
        self.stop_ids = frozenset(ends)
        self.bytes_of: Mapping[int, bytes] = _TokenBytes(self._make_bytes)
        self.text_of: Mapping[int, str | None] = _TokenTexts(self.bytes_of, self.control_ids)
        self._control_pattern = _alternatives(self.control_tokens)
        self._pieces: RememberedPieces | None = None
        if byte_level and not space_prefix and stand_alone(added):
            self._pieces = RememberedPieces(self._encode_whole, self.added_tokens)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of a text; control tokens written in it are read as such.

        `add_special`: with the model's BOS (and EOS) where it wants one, as for a raw prompt; a
        rendered chat writes its own.
        """
        ids = self._encode(text)
        if add_special and self._add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self._add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_pieces(self, pieces: Iterable[str]) -> list[int]:
        """Token ids of a text given in pieces; no control token reaches across two of them."""
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            new = self._encode(piece) if piece else []
            if index and self.space_prefix and new and self._token(new[0]) == SPACE:
                del new[0]  # the prefix space belongs to the start of a text only
            ids += new
        return ids

    def mentions_control(self, text: str) -> re.Match[str] | None:
        """The first control token that is written in a text, if any."""
        return self._control_pattern.search(text)

    def break_control(self, text: str, mark: str) -> str:
        """Put `mark` into every control token that is written in a text, after its first letter."""
        return self._control_pattern.sub(lambda m: m[0][0] + mark + m[0][1:], text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; of a control token the text of its name."""
        return self.bytes_of[token_id]

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of a whole sequence, control tokens left out, bad UTF-8 as U+FFFD."""
        data = b"".join(self.token_bytes(t) for t in token_ids if t not in self.control_ids)
        if self.space_prefix and data[:1] == b" ":
            data = data[1:]
        return data.decode("utf-8", "replace")

    def serialize(self) -> str:
        """The tokenizer in the JSON form of the `tokenizers` library."""
        text: str = self._backend.to_str()
        return text

    def _encode(self, text: str) -> list[int]:
        return self._encode_whole(text) if self._pieces is None else self._pieces.encode(text)

    def _encode_whole(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):  # lone surrogates, which JSON can spell
            clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self._backend.encode(clean, add_special_tokens=False).ids
        return ids

    def _token(self, token_id: int) -> str | None:
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def _make_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._token(token_id)
        if token is None:  # padding of the embedding matrix
            return b""
        if self._byte_level:
            return b"".join(_alphabet().get(c) or c.encode() for c in token)
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return token.replace(SPACE, " ").encode()


def load_tokenizer(parts: TextParts) -> Tokenizer:
    """The tokenizer of a model. Raises ModelError naming the file or key at fault."""
    source: TokenizerSource = parts.tokenizer
    if isinstance(source, TokenizerFiles):
        return _from_files(source, parts)
    return from_gguf(source, parts.stop_ids)


def from_gguf(data: TokenizerData, stop_ids: Iterable[int] = ()) -> Tokenizer:
    """A tokenizer from GGUF metadata. Raises ModelError."""
    backend = build_backend(data)
    return Tokenizer(
        backend,
        byte_level=data.model == "gpt2",
        space_prefix=adds_space_prefix(data),
        add_bos=wants_bos(data),
        add_eos=bool(data.add_eos),
        bos_id=data.bos_id,
        eos_id=data.eos_id,
        stop_ids=stop_ids,
    )


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


class _TokenizerJson(msgspec.Struct):
    """What must be known of a tokenizer.json beside what the library does with it."""

    normalizer: _Section | None = None
    pre_tokenizer: _Section | None = None
    decoder: _Section | None = None

    def sections(self) -> list[_Section]:
        tops = (self.normalizer, self.pre_tokenizer, self.decoder)
        return [section for top in tops if top is not None for section in top.walk()]


def _from_files(files: TokenizerFiles, parts: TextParts) -> Tokenizer:
    try:
        raw = files.tokenizer.read_bytes()
        shape = msgspec.json.decode(raw, type=_TokenizerJson)
        backend = Backend.from_buffer(raw)
    except Exception as error:  # the library raises a bare Exception for a malformed file
        raise ModelError(f"{files.tokenizer.name} cannot be read: {error}") from error
    sections = shape.sections()
    bos = backend.token_to_id(parts.bos_token) if parts.bos_token else None
    eos = backend.token_to_id(parts.eos_token) if parts.eos_token else None
    ids: list[int] = backend.encode("", add_special_tokens=True).ids
    return Tokenizer(
        backend,
        byte_level=any(section.type == "ByteLevel" for section in sections),
        space_prefix=any(_prefixes(section) for section in sections),
        add_bos=bos is not None and ids[:1] == [bos],
        add_eos=eos is not None and ids[-1:] == [eos] and eos != bos,
        bos_id=bos,
        eos_id=eos,
        stop_ids=parts.stop_ids,
    )


def _prefixes(section: _Section) -> bool:
    if section.type == "Prepend":
        return section.prepend == SPACE
    if section.type == "Metaspace":
        return section.prepend_scheme in ("first", "always") or section.add_prefix_space is True
    return False


def _alternatives(tokens: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted((t for t in tokens if len(t) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, bytes]:
    """GPT-2's byte alphabet: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)})
    return table
