"""What a row carries only if its request asks for it: a bias, penalties, DRY.

A request without them costs an entry in no table and a step without them builds no list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from penstock.dialog import Sampling
from penstock.kernels.sampling import SeenTokens, TokenValues
from penstock.runtime.dry import LARGEST, DryState
from penstock.runtime.seen import SeenState

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Listed = tuple[Ints, Floats]
Part = TypeVar("Part")

NO_PENALTIES = (0.0, 0.0, 1.0)
LEAST_REPETITION = float(np.finfo(np.float32).tiny)


@dataclass(slots=True)
class RowFeatures:
    """Of one row; None for what it does not use. `penalties`: presence, frequency, repetition."""

    bias: Listed | None
    seen: SeenState | None
    penalties: tuple[float, float, float]
    dry: DryState | None

    @property
    def has_state(self) -> bool:
        """Whether the next draw depends on the token drawn before it."""
        return self.seen is not None or self.dry is not None

    def dry_costs(self) -> Listed | None:
        """Tokens that would prolong a repetition, and what each costs."""
        return None if self.dry is None else self.dry.costs()

    def append(self, token: int) -> None:
        """The next token of the answer."""
        if self.seen is not None:
            self.seen.append(token)
        if self.dry is not None:
            self.dry.append(token)


class FeatureTable:
    """The features of all rows that have any."""

    def __init__(self) -> None:
        self._rows: dict[int, RowFeatures] = {}

    def admit(self, row: int, tokens: Ints, prompt_tokens: int, sampling: Sampling) -> None:
        """`row` has a new tenant, whose known `tokens` begin with `prompt_tokens` of prompt."""
        features = features_of(tokens, prompt_tokens, sampling)
        if features is None:
            self.release(row)
        else:
            self._rows[row] = features

    def release(self, row: int) -> None:
        """`row` is free: its memory is given back."""
        self._rows.pop(row, None)

    def append(self, rows: Sequence[int], token_ids: Ints) -> None:
        """`token_ids[i]` follows the known tokens of `rows[i]`; a negative one is none."""
        if not self._rows:
            return
        for row, token in zip(rows, token_ids.tolist(), strict=True):
            features = self._rows.get(row)
            if features is not None and token >= 0:
                features.append(token)

    def has_state(self, row: int) -> bool:
        """Whether the next draw of `row` depends on the token drawn before it."""
        features = self._rows.get(row)
        return features is not None and features.has_state

    def bias(self, rows: Sequence[int]) -> TokenValues | None:
        """The biases of `rows`; the same until the next admission."""
        return _listed(self._parts(rows, lambda features: features.bias))

    def dry(self, rows: Sequence[int]) -> TokenValues | None:
        """What DRY takes from tokens of `rows` now."""
        return _listed(self._parts(rows, RowFeatures.dry_costs))

    def seen(self, rows: Sequence[int]) -> SeenTokens | None:
        """What `rows` have seen, and what it costs them."""
        states = self._parts(rows, lambda features: features.seen)
        if states is None:
            return None
        penalties = self._parts(rows, lambda features: features.penalties)
        assert penalties is not None
        columns = np.array([part or NO_PENALTIES for part in penalties], np.float32).T.copy()
        used = [state for state in states if state is not None]
        lengths = [0 if state is None else len(state.tokens) for state in states]
        return SeenTokens(
            _starts(lengths),
            np.concatenate([state.tokens for state in used]),
            np.concatenate([state.counts for state in used]),
            *columns,
        )

    def _parts(
        self, rows: Sequence[int], part_of: Callable[[RowFeatures], Part | None]
    ) -> list[Part | None] | None:
        """One part of each of `rows`; None where no row has it."""
        if not self._rows:
            return None
        features = [self._rows.get(row) for row in rows]
        parts = [None if of_row is None else part_of(of_row) for of_row in features]
        return parts if any(part is not None for part in parts) else None


def features_of(tokens: Ints, prompt_tokens: int, sampling: Sampling) -> RowFeatures | None:
    """The features of a row with these known tokens, or None if it uses none."""
    penalties = (
        sampling.presence_penalty or 0.0,
        sampling.frequency_penalty or 0.0,
        _within_float32(sampling.repetition_penalty),
    )
    features = RowFeatures(
        bias=_bias(sampling.logit_bias) if sampling.logit_bias else None,
        seen=_seen(tokens, prompt_tokens, penalties) if penalties != NO_PENALTIES else None,
        penalties=penalties,
        dry=_dry(tokens, sampling) if sampling.dry_multiplier else None,
    )
    return features if features.bias is not None or features.has_state else None


def _within_float32(repetition: float | None) -> float:
    """None means 1: off."""
    return 1.0 if repetition is None else min(max(repetition, LEAST_REPETITION), LARGEST)


def _bias(bias: dict[int, float]) -> Listed:
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)


def _seen(tokens: Ints, prompt_tokens: int, penalties: tuple[float, float, float]) -> SeenState:
    """Only a repetition penalty asks what the prompt holds."""
    repeats = penalties[2] != 1.0
    state = SeenState(tokens[:prompt_tokens].tolist() if repeats else ())
    for token in tokens[prompt_tokens:].tolist():
        state.append(token)
    return state


def _dry(tokens: Ints, sampling: Sampling) -> DryState:
    state = DryState(sampling)
    state.extend(tokens)
    return state


def _listed(parts: list[Listed | None] | None) -> TokenValues | None:
    if parts is None:
        return None
    used = [part for part in parts if part is not None]
    return TokenValues(
        _starts([0 if part is None else len(part[0]) for part in parts]),
        np.concatenate([tokens for tokens, _ in used]),
        np.concatenate([values for _, values in used]),
    )


def _starts(lengths: list[int]) -> Ints:
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts
