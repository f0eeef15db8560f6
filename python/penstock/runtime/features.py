"""What a row carries only if its request asks for it: a bias, penalties, DRY.

A request without them costs an entry in no table and a step without them builds no list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.dialog import Sampling
from penstock.kernels.sampling import SeenTokens, TokenValues
from penstock.runtime.dry import DryRows, DryState
from penstock.runtime.penalties import NONE, SeenRows, SeenState, penalties_of

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Listed = tuple[Ints, Floats]


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """Of one row; None for what it does not use."""

    bias: Listed | None
    seen: SeenState | None
    dry: DryState | None

    @property
    def has_state(self) -> bool:
        """Whether the next draw depends on the token drawn before it."""
        return self.seen is not None or self.dry is not None

    def extend(self, tokens: Ints) -> None:
        """The next tokens of the answer."""
        if self.seen is not None:
            self.seen.counts.extend(tokens)
        if self.dry is not None:
            self.dry.repetitions.extend(tokens)


@dataclass(frozen=True, slots=True)
class BatchFeatures:
    """Of the rows of a step, the same until one of them has a new tenant; None for what no row
    uses."""

    rows: list[int] = field(default_factory=list)
    bias: TokenValues | None = None
    seen: SeenRows | None = None
    dry: DryRows | None = None


class FeatureTable:
    """The features of all rows that have any."""

    def __init__(self) -> None:
        self._rows: dict[int, RowFeatures] = {}
        self._batch = BatchFeatures()

    def admit(self, row: int, tokens: Ints, prompt_tokens: int, sampling: Sampling) -> None:
        """`row` has a new tenant, whose known `tokens` begin with `prompt_tokens` of prompt."""
        self.release(row)
        features = features_of(tokens, prompt_tokens, sampling)
        if features is not None:
            self._rows[row] = features

    def release(self, row: int) -> None:
        """`row` is free: its memory is given back."""
        self._rows.pop(row, None)
        self._batch = BatchFeatures()

    def append(self, rows: list[int], token_ids: Ints) -> None:
        """`token_ids[i]` follows the known tokens of `rows[i]`, which are distinct; a negative one
        is none."""
        batch = self._batch_of(rows)
        if batch.seen is not None:
            batch.seen.append(token_ids)
        if batch.dry is not None:
            batch.dry.append(token_ids)

    def extend(self, row: int, token_ids: Ints) -> None:
        """`token_ids` follow the known tokens of one row."""
        features = self._rows.get(row)
        if features is not None:
            features.extend(token_ids)

    def has_any(self, rows: list[int]) -> bool:
        """Whether any of `rows` has its logits changed before the draw."""
        return any(row in self._rows for row in rows) if self._rows else False

    def has_state(self, row: int) -> bool:
        """Whether the next draw of `row` depends on the token drawn before it."""
        features = self._rows.get(row)
        return features is not None and features.has_state

    def lists(
        self, rows: list[int]
    ) -> tuple[TokenValues | None, SeenTokens | None, TokenValues | None]:
        """Bias, seen tokens and what DRY takes, of `rows` now; None for what none of them uses."""
        batch = self._batch_of(rows)
        seen = None if batch.seen is None else batch.seen.tokens()
        return batch.bias, seen, None if batch.dry is None else batch.dry.costs()

    def _batch_of(self, rows: list[int]) -> BatchFeatures:
        if self._rows and self._batch.rows != rows:
            self._batch = _batch([self._rows.get(row) for row in rows], rows)
        return self._batch


def features_of(tokens: Ints, prompt_tokens: int, sampling: Sampling) -> RowFeatures | None:
    """The features of a row with these known tokens, or None if it uses none."""
    penalties = penalties_of(sampling)
    features = RowFeatures(
        bias=_bias(sampling.logit_bias) if sampling.logit_bias else None,
        seen=SeenState(tokens, prompt_tokens, penalties) if penalties != NONE else None,
        dry=DryState(tokens, sampling) if sampling.dry_multiplier else None,
    )
    return features if features.bias is not None or features.has_state else None


def _batch(features: list[RowFeatures | None], rows: list[int]) -> BatchFeatures:
    biases = [of_row.bias if of_row else None for of_row in features]
    seen = [of_row.seen if of_row else None for of_row in features]
    dry = [of_row.dry if of_row else None for of_row in features]
    return BatchFeatures(
        rows=list(rows),
        bias=_listed(biases) if any(biases) else None,
        seen=SeenRows(seen) if any(seen) else None,
        dry=DryRows(dry) if any(dry) else None,
    )


def _bias(bias: dict[int, float]) -> Listed:
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)


def _listed(parts: Sequence[Listed | None]) -> TokenValues:
    used = [part for part in parts if part is not None]
    starts = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([0 if part is None else len(part[0]) for part in parts], out=starts[1:])
    return TokenValues(
        starts,
        np.concatenate([tokens for tokens, _ in used]),
        np.concatenate([values for _, values in used]),
    )
