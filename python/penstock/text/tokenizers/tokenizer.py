"""Converts text to token ids and back to bytes, with the vocabulary of the loaded model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from penstock.models.tokenizer.tokenizer_data import (
    TextParts,
    TokenizerData,
    TokenizerFiles,
    TokenizerSource,
)
from penstock.text.tokenizers.backend import SPACE, adds_space_prefix, bos_eos_tokens, build_backend
from penstock.text.tokenizers.panic_guard import encode_or_refuse, errors_naming
from penstock.text.tokenizers.piece_cache import PieceCache, can_cut_at
from penstock.text.tokenizers.token_pattern import pattern_of
from penstock.text.tokenizers.tokenizer_json import read_tokenizer_json, special_tokens_around

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
)
"""Control tokens that end an answer. They apply to every model whose vocabulary has them."""

_NO_LETTER = "\U00100000"
"""A private-use code point, which no BPE merge joins with another character."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _TokenBytes(dict[int, bytes]):
    """Maps token id -> bytes, computed on first access."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, token_id: int) -> bytes:
        made = self[token_id] = self._make(token_id)
        return made


class _TokenTexts(dict[int, str | None]):
    """Maps token id -> text, computed on first access. The text is None for control tokens and for
    tokens with incomplete characters."""

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
    """Encodes text, decodes tokens, and finds control tokens in text. Thread-safe.

    - `byte_level`: tokens are written in GPT-2's byte alphabet.
    - `before`, `after`: ids of the tokens around a raw prompt.
    - `vocab_size`: number of tokens, including added tokens.
    - `bos_id`, `eos_id`: ids of the BOS and EOS tokens, None if the model has no such token.
    - `stop_ids`: all tokens that end an answer.
    - `control_tokens`: text -> id of the control tokens, which decoding leaves out.
    - `added_tokens`: text -> id of the control tokens and other tokens that are never split.
    - `bytes_of`: token id -> bytes; the name for a control token.
    - `text_of`: token id -> text, None for control tokens and incomplete characters.
    - `space_prefix`: encoding prepends a space to text (SentencePiece models).
    """

    def __init__(
        self,
        backend: Backend,
        *,
        byte_level: bool,
        space_prefix: bool = False,
        before: Iterable[int] = (),
        after: Iterable[int] = (),
        bos_id: int | None = None,
        eos_id: int | None = None,
        stop_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self.byte_level = byte_level
        self.before = list(before)
        self.after = list(after)
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
        self._control_pattern = pattern_of(t for t in self.control_tokens if len(t) > 1)
        self._pieces: PieceCache | None = None
        if byte_level and not space_prefix and can_cut_at(added):
            self._pieces = PieceCache(self._encode_whole, self.added_tokens)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return the token ids of a text. Control tokens written in it are recognized.

        `add_special`: add the tokens that the model expects around a raw prompt, usually a BOS
        token. A rendered chat template already contains them.
        """
        ids = self._encode(text)
        return [*self.before, *ids, *self.after] if add_special else ids

    def encode_pieces(self, pieces: Iterable[str]) -> list[int]:
        """Return the token ids of a text given in pieces. Control tokens that span two pieces are
        not recognized."""
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            ids += self.encode_inside(piece) if index else self._encode(piece)
        return ids

    def encode_inside(self, text: str) -> list[int]:
        """Return the token ids of a text that continues another text: no space is prepended."""
        if not self.space_prefix:
            return self._encode(text)
        return self._encode(_NO_LETTER + text)[len(self._encode(_NO_LETTER)) :]

    def mentions_control(self, text: str) -> re.Match[str] | None:
        """Return the first control token written in a text, if any."""
        return self._control_pattern.search(text)

    def break_control(self, text: str, mark: str) -> str:
        """Insert `mark` after the first letter of every control token written in a text."""
        return self._control_pattern.sub(lambda m: m[0][0] + mark + m[0][1:], text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token. A control token's bytes are its name."""
        return self.bytes_of[token_id]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of a whole sequence, without control tokens and with U+FFFD for invalid
        UTF-8."""
        data = b"".join(self.token_bytes(t) for t in token_ids if t not in self.control_ids)
        if self.space_prefix and data[:1] == b" ":
            data = data[1:]
        return data.decode("utf-8", "replace")

    def serialize(self) -> str:
        """Return the tokenizer in the JSON format of the `tokenizers` library."""
        text: str = self._backend.to_str()
        return text

    def _encode(self, text: str) -> list[int]:
        return self._encode_whole(text) if self._pieces is None else self._pieces.encode(text)

    def _encode_whole(self, text: str) -> list[int]:
        try:
            return encode_or_refuse(self._backend, text)
        except (TypeError, UnicodeEncodeError):  # lone surrogates, which JSON allows
            clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return encode_or_refuse(self._backend, clean)

    def _token(self, token_id: int) -> str | None:
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def _make_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            if self.byte_level or token_id in self.control_ids:
                return added.encode()
            return added.replace(SPACE, " ").encode()
        token = self._token(token_id)
        if token is None:  # padding of the embedding matrix
            return b""
        if self.byte_level:
            return b"".join(_alphabet().get(c) or c.encode() for c in token)
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return token.replace(SPACE, " ").encode()


def load_tokenizer(parts: TextParts) -> Tokenizer:
    """Load the tokenizer of a model. Raises ModelError that names the faulty file or key."""
    source: TokenizerSource = parts.tokenizer
    if isinstance(source, TokenizerFiles):
        return _from_files(source, parts)
    return from_gguf(source, parts.stop_ids)


def from_gguf(data: TokenizerData, stop_ids: Iterable[int] = ()) -> Tokenizer:
    """Make a tokenizer from GGUF metadata. Raises ModelError that names the file and the key."""
    with errors_naming(data.where):
        before, after = bos_eos_tokens(data)
        backend = build_backend(data)
    return Tokenizer(
        backend,
        byte_level=data.model == "gpt2",
        space_prefix=adds_space_prefix(data),
        before=before,
        after=after,
        bos_id=data.bos_id,
        eos_id=data.eos_id,
        stop_ids=stop_ids,
    )


def _from_files(files: TokenizerFiles, parts: TextParts) -> Tokenizer:
    read = read_tokenizer_json(files)
    before, after = special_tokens_around(read.backend)
    return Tokenizer(
        read.backend,
        byte_level=read.byte_level,
        space_prefix=read.space_prefix,
        before=before,
        after=after,
        bos_id=read.backend.token_to_id(parts.bos_token) if parts.bos_token else None,
        eos_id=read.backend.token_to_id(parts.eos_token) if parts.eos_token else None,
        stop_ids=parts.stop_ids,
    )


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, bytes]:
    """Return GPT-2's byte alphabet, as character -> byte: a printable Latin-1 character is its own
    byte, the characters from U+0100 on are the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)})
    return table
