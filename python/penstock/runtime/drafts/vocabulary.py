"""Checks that a draft model has the vocabulary of its target."""

from __future__ import annotations

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


def check_vocabulary(
    target: ModelFiles, target_size: int, draft: ModelFiles, draft_size: int
) -> None:
    """Raise ModelError unless the tokenizers of two models give the same tokens the same ids.
    `target_size`, `draft_size`: rows of their embeddings, which may differ by some padding."""
    if abs(target_size - draft_size) > MOST_FURTHER:
        raise _refusal(
            target, draft, f"it has {draft_size:,} tokens, and the model {target_size:,}"
        )
    tokens, drafted = _tokens(target), _tokens(draft)
    if tokens is None or drafted is None:
        if target_size != draft_size or (tokens is None) != (drafted is None):
            raise _refusal(target, draft, "one of them has no tokenizer to compare")
        return
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


def _tokens(files: ModelFiles) -> dict[int, str] | None:
    """Return the text of each token in use, by id; None for a folder without tokenizer.json."""
    if files.kind == "gguf":
        data = tokenizer_data(GgufFile(files.path))
        types = data.token_types or [TokenType.NORMAL] * len(data.tokens)
        pairs = enumerate(zip(data.tokens, types, strict=True))
        return {id: token for id, (token, kind) in pairs if kind != TokenType.UNUSED}
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
        return tokens | {int(one["id"]): str(one["content"]) for one in added}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"{path} is not a valid tokenizer: {error!r}") from None
