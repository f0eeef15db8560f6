"""Reads the vocabularies of models, and checks that a draft model has that of its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.tokenizer.gguf_tokenizer import tokenizer_data
from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.json_file import read_json

MAX_TOKENIZER_BYTES: Final = 256 << 20
MOST_FURTHER: Final = 512
"""Vocabularies of one family may differ in the number of special tokens and of padding rows."""
_SPECIAL: Final = (TokenType.CONTROL, TokenType.USER_DEFINED)


@dataclass(frozen=True, slots=True)
class VocabularyTokens:
    """The tokens in use by id, as the tokenizer's file writes them.

    - `texts`: id -> text, or the name of a special token.
    - `special`: the tokens that the tokenizer does not make from text by its rules.
    """

    texts: dict[int, str]
    special: frozenset[int]


def check_vocabulary(
    target: ModelFiles, target_size: int, draft: ModelFiles, draft_size: int
) -> None:
    """Raise ModelError unless the tokenizers of two models give the same tokens the same ids.
    `target_size`, `draft_size`: rows of their embeddings, which may differ by some padding."""
    if abs(target_size - draft_size) > MOST_FURTHER:
        raise _refusal(
            target, draft, f"it has {draft_size:,} tokens, and the model {target_size:,}"
        )
    own, others = vocabulary_tokens(target), vocabulary_tokens(draft)
    if own is None or others is None:
        if target_size != draft_size or (own is None) != (others is None):
            raise _refusal(target, draft, "one of them has no tokenizer to compare")
        return
    tokens, drafted = own.texts, others.texts
    for id in sorted(tokens.keys() & drafted.keys()):
        if tokens[id] != drafted[id]:
            raise _refusal(
                target, draft, f"its token {id} is {drafted[id]!r}, and the model's {tokens[id]!r}"
            )
    further = len(tokens.keys() ^ drafted.keys())
    if further > MOST_FURTHER:
        raise _refusal(target, draft, f"{further:,} tokens are in only one of them")


def _refusal(target: ModelFiles, draft: ModelFiles, difference: str) -> ModelError:
    return ModelError(
        f"draft_model {draft.model_id}: its vocabulary is not that of {target.model_id}:"
        f" {difference}"
    )


def vocabulary_tokens(files: ModelFiles) -> VocabularyTokens | None:
    """Return the tokens of a model; None for a folder without tokenizer.json. Raises ModelError if
    the file is not a valid tokenizer."""
    if files.kind == "gguf":
        data = tokenizer_data(GgufFile(files.path))
        types = data.token_types or [TokenType.NORMAL] * len(data.tokens)
        kinds = dict(enumerate(types))
        texts = {id: data.tokens[id] for id, kind in kinds.items() if kind != TokenType.UNUSED}
        return VocabularyTokens(texts, frozenset(id for id in texts if kinds[id] in _SPECIAL))
    path = files.path / "tokenizer.json"
    if not path.exists():
        return None
    try:
        document = read_json(path, dict[str, Any], MAX_TOKENIZER_BYTES)
        vocab = document["model"]["vocab"]
        if isinstance(vocab, dict):
            tokens = {int(id): str(token) for token, id in vocab.items()}
        else:
            tokens = {id: str(entry[0]) for id, entry in enumerate(vocab)}
        added = document.get("added_tokens") or []
        special = {int(one["id"]): str(one["content"]) for one in added}
        return VocabularyTokens(tokens | special, frozenset(special))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"{path} is not a valid tokenizer: {error!r}") from None
