"""Tells the prompt tokens of a step from the generated ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.scheduler.types import Admit

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]


class PromptTable:
    """Knows the length of the prompt of each of `max_num_seqs` rows.

    A token is a prompt token or a generated one for as long as its request lives, also when it is
    computed again after a preemption. Draft tokens count as generated.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._lengths = np.zeros(max_num_seqs, np.int32)

    def admit(self, admit: Admit) -> None:
        """Note the prompt of a row's new sequence."""
        self._lengths[admit.row] = admit.prompt_tokens

    def flags(self, token_rows: Index, positions: Ints) -> Ints:
        """Return 1 for each prompt token and 0 for each generated one: [T]. `token_rows: [T]`: the
        row of each token. `positions: [T]`: its position in the sequence."""
        flags: Ints = (positions < self._lengths[token_rows]).astype(np.int32)
        return flags
