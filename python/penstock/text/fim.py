"""Fill-in-the-middle (FIM) prompts, for models with tokens that mark the text around a gap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FimTokens:
    """FIM token ids of a model.

    - `prefix`: the token before the text that precedes the gap.
    - `suffix`: the token before the text that follows the gap.
    - `middle`: the token after which the model writes the inserted text; None if the family has no
      such token.
    - `stop_ids`: tokens that end the inserted text, in addition to the tokens that end any answer.
    - `suffix_first`: the prompt contains the suffix before the prefix.
    """

    prefix: int
    suffix: int
    middle: int | None
    stop_ids: frozenset[int]
    suffix_first: bool = False

    def tokens(self, before: list[int], after: list[int]) -> list[int]:
        """Return the token ids of the prompt that asks for the text between `before` and `after`,
        which are token ids."""
        if self.suffix_first:
            ids = [self.suffix, *after, self.prefix, *before]
        else:
            ids = [self.prefix, *before, self.suffix, *after]
        return ids if self.middle is None else [*ids, self.middle]


# (prefix, suffix, middle) per family; middle is "" if the family has no such token
_FAMILIES: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("[PREFIX]", "[SUFFIX]", ""),
)
_STOPS: Final = (
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<file_sep>",
    "▁<EOT>",
)


def fim_tokens_of(tokens: Mapping[str, int]) -> FimTokens | None:
    """Return the FIM tokens among a model's added tokens (text -> id), or None if it has none."""
    for prefix, suffix, middle in _FAMILIES:
        if prefix in tokens and suffix in tokens and (not middle or middle in tokens):
            marks = {prefix, suffix, middle, *_STOPS}
            return FimTokens(
                prefix=tokens[prefix],
                suffix=tokens[suffix],
                middle=tokens[middle] if middle else None,
                stop_ids=frozenset(index for text, index in tokens.items() if text in marks),
                suffix_first=not middle,
            )
    return None
