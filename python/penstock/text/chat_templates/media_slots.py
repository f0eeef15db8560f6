"""Finds the placeholders of images, recordings and videos in the tokens of a rendered prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.base.errors import InvalidRequest
from penstock.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """The place of an item in a prompt.

    - `start`, `length`: the tokens of the placeholder.
    - `number`: the number of the item among all items of the messages.
    """

    start: int
    length: int
    number: int


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """The tokens of a conversation. `slots`: the places of its media, by ascending `start`."""

    token_ids: list[int]
    slots: tuple[MediaSlot, ...] = ()


def encode_with_slots(
    tokenizer: Tokenizer, pieces: Iterable[str], numbers: Mapping[str, Sequence[int]]
) -> EncodedChat:
    """Return the tokens and slots of a rendered prompt, given in pieces (see
    `Tokenizer.encode_pieces`).

    `numbers`: placeholder -> the numbers of its items, in the order of the prompt. Raises
    InvalidRequest unless each item has one placeholder.
    """
    ids, found = _encode(tokenizer, pieces, numbers)
    for placeholder, of_kind in numbers.items():
        shown = sum(text == placeholder for _, _, text in found)
        if shown != len(of_kind):
            raise InvalidRequest(
                f"the model's chat template shows {shown} of the {len(of_kind)} media items here;"
                " send media in messages of the user",
                field="messages",
                code="unsupported_value",
            )
    left = {placeholder: iter(of_kind) for placeholder, of_kind in numbers.items()}
    slots = (MediaSlot(start, length, next(left[text])) for start, length, text in found)
    return EncodedChat(ids, tuple(slots))


def _encode(
    tokenizer: Tokenizer, pieces: Iterable[str], placeholders: Iterable[str]
) -> tuple[list[int], list[tuple[int, int, str]]]:
    """Return token ids and the (start, length, placeholder) of all placeholders, by ascending
    start. A placeholder that is no token of its own gets no tokens."""
    single = {tokenizer.added_tokens.get(text): text for text in placeholders}
    spelled = [text for text in placeholders if text not in tokenizer.added_tokens]
    pattern = re.compile("|".join(f"({re.escape(text)})" for text in spelled) or "(?!)")
    ids: list[int] = []
    found: list[tuple[int, int, str]] = []
    is_first = True
    for piece in pieces:
        at = 0
        for match in [*pattern.finditer(piece), None]:
            text = piece[at : match.start()] if match else piece[at:]
            more = tokenizer.encode(text) if is_first else tokenizer.encode_inside(text)
            is_first = False
            for token_id in more:
                if token_id in single:
                    found.append((len(ids), 1, single[token_id]))
                ids.append(token_id)
            if match is not None:
                found.append((len(ids), 0, match[0]))
                at = match.end()
    return ids, found
