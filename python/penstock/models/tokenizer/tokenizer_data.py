"""The text parts of a model: its tokenizer, its chat templates and the ids that end a turn.

They are plain data, read from a folder or from GGUF metadata without reading weights; the package
`text` builds a tokenizer from them. This module does not import a tokenizer library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.dialog import Sampling


class TokenType(IntEnum):
    """The types of tokens in a GGUF vocabulary (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """A token that is declared in a file other than tokenizer.json. `id`: None if the file does not
    give an id. The other fields are those of `AddedToken` in the `tokenizers` library."""

    content: str
    id: int | None
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


TextForm: TypeAlias = Literal["as given", "lower case", "bare words"]
"""The form in which a text is encoded. "bare words": lowercased, without ASCII punctuation, with
single spaces between words."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Texts with fewer than `length` tokens are padded with `token` on `side`."""

    token: str
    length: int
    side: Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of a tokenizer of the `tokenizers` library.

    - `tokenizer`: the path of tokenizer.json.
    - `vocab_size`: the number of rows of the model's embedding; token ids must be smaller.
    - `declared`: the tokens that other files declare, in order.
    - `form`: the form in which texts are encoded.
    - `padding`: None: texts are not padded.
    - `end_token`: a sequence ends with the first of these tokens; None: it is not cut.
    """

    tokenizer: Path
    vocab_size: int
    declared: tuple[DeclaredToken, ...] = ()
    form: TextForm = "as given"
    padding: Padding | None = None
    end_token: str | None = None


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """A tokenizer described by GGUF metadata.

    - `model`: "gpt2" (byte-level BPE: `tokens` in the GPT-2 byte alphabet, `merges` "left right"),
      "llama" (SentencePiece: `tokens` with U+2581 for a space, `scores`, byte tokens "<0x0A>"),
      "bert" (WordPiece: U+2581 where a word begins; a text is enclosed in `cls_id` and `sep_id`),
      or another name, which is not yet checked.
    - `pre`: the name of the pre-tokenizer ("smollm", "qwen2", "llama-bpe", ...).
    - `tokens`: the text of each token, by id.
    - `token_types`, `scores`: one entry per token, or empty.
    - `add_bos`, `add_eos`, `add_space_prefix`: None if the file does not set them.
    - `where`: the file, for error messages.
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
    """The text parts of a text-generating model, which the API process needs.

    - `fingerprint`: identifies the model's content; a safe cache key for objects built from these
      parts.
    - `stop_ids`: the tokens that end an answer: the end of text and, if the vocabulary has one, the
      end of a turn.
    - `bos_token`, `eos_token`: the text of the begin and end tokens, for the chat template.
    - `tool_template`: the chat template for requests with tools, if it differs from
      `chat_template`.
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
    """The fixed text of a reranker's prompt: before the query, between query and document, and
    after the document."""

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """The text parts of an embedding model or reranker, which the API process needs.

    - `fingerprint`: see `TextParts`.
    - `prompt`: precedes every text.
    - `supports_lora`: adapters can be loaded. Only decoders support adapters.
    - `template`: the prompt for pairs of texts, if the tokenizer does not join the texts itself.
    - `templated`: the chat template renders every input, with `prompt` as the system's message.
    """

    model_id: str
    fingerprint: str
    tokenizer: TokenizerSource
    prompt: str
    supports_lora: bool
    template: PairTemplate | None = None
    templated: bool = False
