"""The tokenizer of a Hugging Face folder as metadata of a GGUF file: byte-level BPE, and
SentencePiece's BPE with bytes for unknown characters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_text_parts
from penstock.models.tokenizer.gguf_tokenizer import END_OF_TURN
from penstock.models.tokenizer.tokenizer_data import (
    TextParts,
    TokenizerData,
    TokenizerFiles,
    TokenType,
)
from penstock.text.tokenizers.backend import SPACE
from penstock.text.tokenizers.pretokenizers import SPLITS
from penstock.text.tokenizers.tokenizer import Tokenizer, from_gguf, load_tokenizer

_PROBES: Final = (
    "The year 2024, 1234567 and 3.14159; don't you'll WE'RE it's x1y22z333",
    "  two  spaces\n\n\nlines\t\ttabs \r\n  end   ",
    "def f(x):\n    return x**2 != y_1 # Größe naïve e\u0301",
    "日本語のテキスト 你好，世界！ Привет мир مرحبا हिन्दी",
    "\U0001f600 ümläut…«quoted» ¿qué? 5€ ½ ² HTTPResponse camelCase a/b/c",
)
_PROBED_TOKENS: Final = 1000
_USUAL_SPLITS: Final = ("llama-bpe", "qwen2", "smollm", "tekken", "gpt-2")
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    type: str = ""
    vocab: dict[str, int] | list[Any] = {}
    merges: list[str | list[str]] = []
    unk_token: str | None = None
    byte_fallback: bool = False


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def tokenizer_values(files: ModelFiles, vocab_size: int) -> dict[str, Any]:
    """Return the keys `tokenizer.*` of a folder. Raises ModelError for another kind of tokenizer,
    and for one that has other tokens than a GGUF file would give for texts of many scripts."""
    parts = load_text_parts(files)
    assert isinstance(parts.tokenizer, TokenizerFiles)
    path = parts.tokenizer.tokenizer
    try:
        read = msgspec.json.decode(path.read_bytes(), type=_TokenizerJson)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path}: {error}") from None
    vocab = read.model.vocab
    own = load_tokenizer(parts)
    if read.model.type != "BPE" or not isinstance(vocab, dict):
        raise ModelError(f"{path}: a tokenizer of type {read.model.type!r} is not written as GGUF")
    if not own.byte_level and not read.model.byte_fallback:
        raise ModelError(f"{path}: BPE without bytes for unknown characters is not written as GGUF")
    data = _data(read, vocab, parts, own, vocab_size)
    probes = _probes(own)
    if own.byte_level:
        data = _with_split(data, probes)
    elif not _gives(data, probes):
        raise ModelError(
            f"{path}: the order of its merges is not that of scores, so that the tokenizer cannot"
            " be written as GGUF"
        )
    return _values(data, parts, own)


def _data(
    read: _TokenizerJson,
    vocab: Mapping[str, int],
    parts: TextParts,
    own: Tokenizer,
    vocab_size: int,
) -> TokenizerData:
    """Return the tokenizer in the terms of GGUF. The pre-tokenizer is still missing."""
    tokens, types = _tokens(read, vocab, parts, vocab_size, own.byte_level)
    ids = {text: number for number, text in enumerate(tokens)}
    merges = [one if isinstance(one, str) else " ".join(one) for one in read.model.merges]
    bos, eos = (ids.get(text or "") for text in (parts.bos_token, parts.eos_token))
    return TokenizerData(
        model="gpt2" if own.byte_level else "llama",
        pre=None if own.byte_level else "default",
        tokens=tokens,
        token_types=types,
        scores=[] if own.byte_level else _scores(tokens, merges),
        merges=merges if own.byte_level else [],
        bos_id=bos,
        eos_id=eos,
        unknown_id=ids.get(read.model.unk_token or ""),
        add_bos=bos is not None and own.before == [bos],
        add_eos=eos is not None and own.after == [eos],
        add_space_prefix=None if own.byte_level else own.space_prefix,
        where=str(parts.model_id),
    )


def _tokens(
    read: _TokenizerJson,
    vocab: Mapping[str, int],
    parts: TextParts,
    vocab_size: int,
    byte_level: bool,
) -> tuple[list[str], list[int]]:
    """Return the text and the type of each row of the embedding."""
    assert isinstance(parts.tokenizer, TokenizerFiles)
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [int(TokenType.UNUSED)] * vocab_size
    for text, number in vocab.items():
        if number < vocab_size:
            is_byte = not byte_level and _BYTE.fullmatch(text)
            tokens[number] = text
            types[number] = int(TokenType.BYTE if is_byte else TokenType.NORMAL)
    declared = [(one.id, one.content, one.special) for one in read.added_tokens]
    for one in parts.tokenizer.declared:
        if one.id is not None:
            declared.append((one.id, one.content, one.special))
    for number, text, special in declared:
        if not number < vocab_size:
            continue
        kind = TokenType.CONTROL if special else TokenType.USER_DEFINED
        if text == read.model.unk_token:
            kind = TokenType.UNKNOWN
        # SentencePiece finds such a token in a text before spaces are replaced.
        plain = byte_level or kind != TokenType.USER_DEFINED
        tokens[number] = text if plain else text.replace(SPACE, " ")
        types[number] = int(kind)
    return tokens, types


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """Return scores with which the best pair is the one of the first merge. A token that no merge
    makes comes after all others."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        ranks.setdefault(left + right, rank)
    after = len(merges)
    return [-float(ranks.get(token, after + number)) for number, token in enumerate(tokens)]


def _with_split(data: TokenizerData, probes: Mapping[str, list[int]]) -> TokenizerData:
    """Return `data` with the first pre-tokenizer that gives the tokens of tokenizer.json."""
    for name in dict.fromkeys((*_USUAL_SPLITS, *SPLITS)):
        named = replace(data, pre=name)
        if _gives(named, probes):
            return named
    raise ModelError(
        f"{data.where}: the pre-tokenizer is none of {', '.join(sorted(SPLITS))}, so that the"
        " tokenizer cannot be written as GGUF"
    )


def _gives(data: TokenizerData, probes: Mapping[str, list[int]]) -> bool:
    tokenizer = from_gguf(data)
    return all(tokenizer.encode(text) == ids for text, ids in probes.items())


def _probes(own: Tokenizer) -> dict[str, list[int]]:
    """Return the tokens of texts of many scripts, and of one with tokens of the whole vocabulary as
    words."""
    step = max(own.vocab_size // _PROBED_TOKENS, 1)
    words = (own.text_of[number] for number in range(0, own.vocab_size, step))
    texts = (*_PROBES, " ".join(word for word in words if word))
    return {text: own.encode(text) for text in texts}


def _values(data: TokenizerData, parts: TextParts, own: Tokenizer) -> dict[str, Any]:
    """Return the keys that describe `data`, and the chat templates."""
    ggml: dict[str, Any] = {
        "model": data.model,
        "pre": data.pre,
        "tokens": data.tokens,
        "token_type": np.array(data.token_types, np.int32),
        "add_bos_token": bool(data.add_bos),
        "add_eos_token": bool(data.add_eos),
    }
    if data.scores:
        ggml["scores"] = np.array(data.scores, np.float32)
    if data.merges:
        ggml["merges"] = data.merges
    if data.add_space_prefix is not None:
        ggml["add_space_prefix"] = data.add_space_prefix
    ends = {"bos": data.bos_id, "eos": data.eos_id, "unknown": data.unknown_id}
    ends["eot"] = _end_of_turn(data, parts)
    for name, number in ends.items():
        if number is not None:
            ggml[f"{name}_token_id"] = number
    values = {f"tokenizer.ggml.{key}": value for key, value in ggml.items()}
    if parts.chat_template:
        values["tokenizer.chat_template"] = parts.chat_template
    if parts.tool_template:
        values["tokenizer.chat_templates"] = ["tool_use"]
        values["tokenizer.chat_template.tool_use"] = parts.tool_template
    return values


def _end_of_turn(data: TokenizerData, parts: TextParts) -> int | None:
    """Return the token that ends a turn beside the end of a text, if readers would not know it by
    its text."""
    known = {number for number, text in enumerate(data.tokens) if text in END_OF_TURN}
    others = set(parts.stop_ids) - known - {data.eos_id}
    return min(others, default=None)
