"""The text parts of a model: its tokenizer, its chat template, the ids that end a turn.

They are plain data, read from a folder or from GGUF metadata without reading weights; the text room
builds its tokenizer from them. This file knows no tokenizer library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from penstock.dialog import Sampling


class TokenType(IntEnum):
    """The type of a token of a GGUF vocabulary (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """A token that the files beside a tokenizer.json declare. `id` None: they do not give one. The
    other fields are those of `AddedToken` in the `tokenizers` library."""

    content: str
    id: int | None
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of a tokenizer of the `tokenizers` library. `vocab_size`: the rows of the model's
    embedding, which limit the ids. `declared`: the tokens that the files beside `tokenizer`
    declare, in order. `lower_case`: texts are lowercased before they are encoded."""

    tokenizer: Path
    vocab_size: int
    declared: tuple[DeclaredToken, ...] = ()
    lower_case: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """A tokenizer that GGUF metadata describe.

    `model`: "gpt2" (byte-level BPE: `tokens` in the GPT-2 byte alphabet, `merges` "left right"),
    "llama" (SentencePiece: `tokens` with U+2581 for a space, `scores`, byte tokens "<0x0A>"),
    "bert" (WordPiece: U+2581 where a word begins, framed by `cls_id` and `sep_id`), or another name
    that has not been checked. `pre`: the name of the pre-tokenizer ("smollm", "qwen2", "llama-bpe",
    ...). The index in `tokens` is the token id; `token_types` and `scores` are as long as `tokens`
    or empty. `add_bos` and the like are None if the file does not set them. `where`: the file, for
    error messages.
    """

    model: str
    pre: str | None
    tokens: list[str]
    token_types: list[int]
    scores: list[float]
    merges: list[str]
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    cls_id: int | None = None
    sep_id: int | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    where: str = "the GGUF file"


TokenizerSource: TypeAlias = TokenizerFiles | TokenizerData


@dataclass(frozen=True, slots=True)
class TextParts:
    """The parts of a text model that the API process needs.

    `tool_template`: the template for requests with tools, if it is a different one. `stop_ids`: the
    tokens that end an answer: the end of text and, if the vocabulary has one, the end of a turn.
    `bos_token`, `eos_token`: their text, for the template. `fingerprint` identifies the model's
    content; it is a safe cache key for objects built from these parts.
    """

    model_id: str
    fingerprint: str
    tokenizer: TokenizerSource
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    stop_ids: tuple[int, ...]
    generation_defaults: Sampling
    max_model_len: int
    vocab_size: int
    tool_template: str | None = None


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The text of a reranker's prompt before the query, between query and document, and after the
    document."""

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """The parts of an embedding model or reranker that the API process needs. `prompt` precedes
    every text. `fingerprint`: see `TextParts`. `supports_lora`: adapters can be loaded, which only
    decoders support. `template`: the prompt of pairs, if the tokenizer does not frame them."""

    model_id: str
    fingerprint: str
    tokenizer: TokenizerSource
    prompt: str
    supports_lora: bool
    template: PairTemplate | None = None
