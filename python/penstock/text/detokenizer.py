"""Converts tokens to text one by one. Only complete characters are returned."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from penstock.text.tokenizers.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Converts the tokens of a growing sequence to text.

    Bytes of an incomplete code point are held back until it is complete. Invalid UTF-8 becomes
    U+FFFD, exactly as if all bytes were decoded at once with "replace". The space prefix of a
    SentencePiece model is removed only if encoding would have added it.

    - `after`: the token before the first pushed token (the last token of the prompt); None at the
      start of a text.
    - `shown`: control tokens that have text, since tool parsers must see them. Other control tokens
      have no text.
    - `held`: the bytes held back.
    """

    __slots__ = (
        "_at_start",
        "_bytes_of",
        "_control",
        "_shown",
        "_space_prefix",
        "_text_of",
        "held",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        after: int | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._text_of = tokenizer.text_of
        self._control = tokenizer.control_ids
        self._shown = shown
        self._space_prefix = tokenizer.space_prefix
        self._at_start = tokenizer.space_prefix and (after is None or after in self._control)
        self.held = b""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; "" if it completes no character."""
        if token_id in self._control:
            self._at_start = self._space_prefix
            if token_id not in self._shown:
                return ""
            return self.finish() + self._bytes_of[token_id].decode()
        data = self._bytes_of[token_id]
        if self._at_start and data:
            self._at_start = False
            if data[0] == 0x20:
                data = data[1:]
        return self._decode(data)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Push several tokens and return their joined text."""
        if not self.held and not self._at_start:
            texts = [self._text_of[token_id] for token_id in token_ids]
            if None not in texts:
                return "".join(texts)  # type: ignore[arg-type]
        if self._at_start or not self._control.isdisjoint(token_ids):
            return "".join(map(self.push, token_ids))
        return self._decode(b"".join(map(self._bytes_of.__getitem__, token_ids)))

    def finish(self) -> str:
        """End the text. Returns U+FFFD for bytes that are held back, else ""."""
        text, _ = utf_8_decode(self.held, "replace", True)
        self.held = b""
        return text

    def _decode(self, data: bytes) -> str:
        if self.held:
            data = self.held + data
        text, used = utf_8_decode(data, "replace", False)
        self.held = b"" if used == len(data) else data[used:]
        return text
