"""The configuration of a multi-token-prediction (MTP) head, which proposes draft tokens.

The head is one decoder layer after the last. At position i it reads the final hidden state of token
i and the embedding of token i + 1, and predicts token i + 2. Its own final hidden state stands in
for that of token i + 1 when it predicts further tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MtpSpec:
    """An MTP head. `like`: the index of the model's layer that has the sizes of the head's."""

    like: int
