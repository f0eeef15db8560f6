"""What a model brings along for text: its tokenizer, its chat template, the ids that end a turn.

Plain data, read from a folder or from GGUF metadata without touching a weight; the text room
builds its tokenizer from it. This file knows no tokenizer library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from penstock.dialog import Sampling


class TokenType(IntEnum):
    """What a token of a GGUF vocabulary is (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """A token that the files beside a tokenizer.json declare; `id` None: they do not say which. The
    rest is as the `tokenizers` library has it."""

    content: str
    id: int | None
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer of the `tokenizers` library. `vocab_size`: the rows of the model's embedding, one
    for each token that it knows. `declared`: what the files beside `tokenizer` declare, in order.
    `lower_case`: texts lose case before they are encoded."""

    tokenizer: Path
    vocab_size: int
    declared: tuple[DeclaredToken, ...] = ()
    lower_case: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """A tokenizer as GGUF metadata describe it.

    `model`: "gpt2" (byte-level BPE: `tokens` in the GPT-2 byte alphabet, `merges` "left right"),
    "llama" (SentencePiece: `tokens` with U+2581 for a space, `scores`, byte tokens "<0x0A>"),
    "bert" (WordPiece: U+2581 where a word begins, framed by `cls_id` and `sep_id`), or another name
    that the reader did not judge. `pre`: name of the pre-tokenizer ("smollm",
    "qwen2", "llama-bpe", ...). Index in `tokens` = token id; `token_types` is as long as `tokens`
    or empty; so is `scores`. `add_bos` and the like are None where the file does not say. `where`:
    the file, for errors.
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
    """All that the API side needs of a model.

    `tool_template`: the template for requests with tools, where that is another. `stop_ids`: the
    tokens that end an answer: the end of text and, where the vocabulary names one, the end of a
    turn. `bos_token`, `eos_token`: as the template may write them. `fingerprint`
    names the model's content; it is a safe key for a cache of what is built from these parts.
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
    """What is written before a query, between it and a document, and after that."""

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """All that the API side needs of a model that makes embeddings, or reranks. `prompt` goes
    before every text. `fingerprint` as in `TextParts`. `supports_lora`: adapters can be for it, as
    for
    a decoder. `template`: of pairs, where the tokenizer does not frame them."""

    model_id: str
    fingerprint: str
    tokenizer: TokenizerSource
    prompt: str
    supports_lora: bool
    template: PairTemplate | None = None
