"""The echoed prompt of an answer, with the log-probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.dialog import TokenLogprob
from penstock.engine.types import TokenDelta
from penstock.text import IncrementalDetokenizer, Tokenizer


class Echo:
    """The echoed prompt of one answer.

    - `text`: the text of the prompt, which is shown before the answer.
    - `token_ids`: the prompt's tokens if their logprobs are shown too, else ().
    - `shown_control`: control tokens that are part of the text.
    - `lead`: number of tokens at the start of the prompt that are not part of the text (a BOS).

    Truncation may drop tokens at the start of the prompt but not their text, so offsets are counted
    from the end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: str = "",
        token_ids: tuple[int, ...] = (),
        *,
        shown_control: frozenset[int] = frozenset(),
        lead: int = 0,
    ) -> None:
        self.text = text
        self._tokenizer = tokenizer
        self._token_ids = token_ids
        self._shown_control = shown_control
        self._lead = lead
        self._scored = [TokenDelta(token_ids[0])] if token_ids else []

    def add(self, tokens: Iterable[TokenDelta]) -> None:
        """Add the next tokens of the prompt. The first call starts with the second token."""
        self._scored.extend(tokens)

    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Return the logprobs of all prompt tokens. The logprob of the first token is None. To be
        called after all tokens were added."""
        assert [token.token_id for token in self._scored] == list(self._token_ids)
        token_bytes = self._tokenizer.token_bytes
        return tuple(
            TokenLogprob(
                token.token_id,
                token_bytes(token.token_id),
                token.logprob,
                tuple((index, token_bytes(index), value) for index, value in token.top),
                offset,
            )
            for token, offset in zip(self._scored, self._offsets(), strict=True)
        )

    def _offsets(self) -> list[int]:
        """Return the offset of each token in the echoed text, in characters."""
        detokenizer = IncrementalDetokenizer(self._tokenizer, shown=self._shown_control)
        starts, shown = [], 0
        for index, token in enumerate(self._scored):
            starts.append(shown)
            if index >= self._lead:
                shown += len(detokenizer.push(token.token_id))
        unseen = len(self.text) - shown - len(detokenizer.finish())
        return [max(0, start + unseen) for start in starts]
