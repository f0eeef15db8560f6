"""The tokenizer of a Hugging Face folder as metadata of a GGUF file: byte-level BPE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_text_parts
from penstock.models.tokenizer.tokenizer_data import (
    TextParts,
    TokenizerData,
    TokenizerFiles,
    TokenType,
)
from penstock.text.tokenizers.tokenizer import Tokenizer, from_gguf, load_tokenizer

_PROBES: Final = (
    "The year 2024, 1234567 and 3.14159; don't you'll WE'RE it's x1y22z333",
    "  two  spaces\n\n\nlines\t\ttabs \r\n  end   ",
    "def f(x):\n    return x**2 != y_1 # Größe naïve",
    "日本語のテキスト 你好，世界！ Привет мир مرحبا",
    "\U0001f600 ümläut…«quoted» ¿qué? 5€ ½ ²",
)


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    type: str = ""
    vocab: dict[str, int] = {}
    merges: list[str | list[str]] = []


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def tokenizer_values(files: ModelFiles, splits: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """Return the keys `tokenizer.*` of a folder. `splits`: names of pre-tokenizers, of which the
    first that gives the tokens of tokenizer.json for texts of many scripts is used. Raises
    ModelError if the tokenizer is no byte-level BPE, or no pre-tokenizer agrees."""
    parts = load_text_parts(files)
    assert isinstance(parts.tokenizer, TokenizerFiles)
    path = parts.tokenizer.tokenizer
    try:
        read = msgspec.json.decode(path.read_bytes(), type=_TokenizerJson)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path}: {error}") from None
    own = load_tokenizer(parts)
    if read.model.type != "BPE" or "Ġ" not in "".join(list(read.model.vocab)[:5000]):
        raise ModelError(f"{path}: only byte-level BPE is written as GGUF yet")
    tokens, types = _tokens(read, vocab_size)
    for token in parts.tokenizer.declared:
        if token.id is not None and token.id < len(tokens):
            tokens[token.id] = token.content
            types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    merges = [one if isinstance(one, str) else " ".join(one) for one in read.model.merges]
    ids = {text: number for number, text in enumerate(tokens)}
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
    }
    for name, text in (("bos", parts.bos_token), ("eos", parts.eos_token)):
        if text is not None and text in ids:
            values[f"tokenizer.ggml.{name}_token_id"] = ids[text]
    begins = bool(own.encode("a", add_special=True)[:1] == [ids.get(parts.bos_token or "")])
    values["tokenizer.ggml.add_bos_token"] = begins
    if parts.chat_template:
        values["tokenizer.chat_template"] = parts.chat_template
    values["tokenizer.ggml.pre"] = _split(own, values, parts, splits)
    return values


def _tokens(read: _TokenizerJson, vocab_size: int) -> tuple[list[str], list[int]]:
    """Return the text and the type of each row of the embedding."""
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [int(TokenType.UNUSED)] * vocab_size
    for text, number in read.model.vocab.items():
        if number < vocab_size:
            tokens[number], types[number] = text, int(TokenType.NORMAL)
    for token in read.added_tokens:
        if token.id < vocab_size:
            kind = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
            tokens[token.id], types[token.id] = token.content, int(kind)
    return tokens, types


def _split(
    own: Tokenizer, values: Mapping[str, Any], parts: TextParts, splits: Sequence[str]
) -> str:
    expected = [own.encode(text) for text in _PROBES]
    for name in splits:
        data = TokenizerData(
            model="gpt2",
            pre=name,
            tokens=values["tokenizer.ggml.tokens"],
            token_types=values["tokenizer.ggml.token_type"].tolist(),
            scores=[],
            merges=values["tokenizer.ggml.merges"],
            bos_id=values.get("tokenizer.ggml.bos_token_id"),
            eos_id=values.get("tokenizer.ggml.eos_token_id"),
            add_bos=values["tokenizer.ggml.add_bos_token"],
            where=str(parts.model_id),
        )
        tokenizer = from_gguf(data)
        if [tokenizer.encode(text) for text in _PROBES] == expected:
            return name
    raise ModelError(
        f"{parts.model_id}: the pre-tokenizer is none of {', '.join(splits)}, so that the"
        " tokenizer cannot be written as GGUF"
    )
