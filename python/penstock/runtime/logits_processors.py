"""What a row carries only if its request asks for it: a bias, penalties, DRY, tokens held back.

A request without them costs an entry in no table and a step without them builds no list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampler_inputs import SeenTokens, TokenValues
from penstock.runtime.dry import DryRows, DryState
from penstock.runtime.min_tokens import MinTokensBan
from penstock.runtime.penalties import NONE, SeenRows, SeenState, penalties_of
from penstock.scheduler import Admit, samples_on_device

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Listed = tuple[Ints, Floats]


@dataclass(frozen=True, slots=True)
class RowLogitsProcessors:
    """Of one row; None for what it does not use. `on_device`: a device can apply all of it."""

    bias: Listed | None
    seen: SeenState | None
    dry: DryState | None
    held: MinTokensBan | None
    on_device: bool

    @property
    def has_state(self) -> bool:
        """Whether the next draw depends on the token sampled before it."""
        return self.seen is not None or self.dry is not None

    def extend(self, tokens: Ints) -> None:
        """The next tokens of the answer."""
        if self.seen is not None:
            self.seen.counts.extend(tokens)
        if self.dry is not None:
            self.dry.repetitions.extend(tokens)


@dataclass(frozen=True, slots=True)
class BatchLogitsProcessors:
    """Of the rows of a step, the same until one of them has a new tenant; None for what no row
    uses."""

    rows: list[int] = field(default_factory=list)
    bias: TokenValues | None = None
    seen: SeenRows | None = None
    dry: DryRows | None = None
    held: list[MinTokensBan | None] | None = None


class LogitsProcessorTable:
    """The features of all rows that have any."""

    def __init__(self) -> None:
        self._rows: dict[int, RowLogitsProcessors] = {}
        self._batch = BatchLogitsProcessors()

    def admit(self, tokens: Ints, admit: Admit) -> None:
        """A row has a new tenant, whose known tokens are `tokens`."""
        self.release(admit.row)
        features = logits_processors_of(tokens, admit)
        if features is not None:
            self._rows[admit.row] = features

    def release(self, row: int) -> None:
        """`row` is free: its memory is given back."""
        self._rows.pop(row, None)
        self._batch = BatchLogitsProcessors()

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

    def of(self, row: int) -> RowLogitsProcessors | None:
        """Those of a row; None where it has none."""
        return self._rows.get(row)

    def need_host(self, rows: list[int]) -> bool:
        """Whether any of `rows` has its logits changed in a way that a device cannot."""
        if not self._rows:
            return False
        return any(row in self._rows and not self._rows[row].on_device for row in rows)

    def has_state(self, row: int) -> bool:
        """Whether the next draw of `row` depends on the token sampled before it."""
        features = self._rows.get(row)
        return features is not None and features.has_state

    def lists(
        self, rows: list[int]
    ) -> tuple[TokenValues | None, SeenTokens | None, TokenValues | None]:
        """Bias, seen tokens and what DRY takes, of `rows` now; None for what none of them uses."""
        batch = self._batch_of(rows)
        seen = None if batch.seen is None else batch.seen.tokens()
        return batch.bias, seen, None if batch.dry is None else batch.dry.costs()

    def held(self, rows: list[int]) -> list[MinTokensBan | None] | None:
        """Tokens that are held back of each of `rows`; None where none of them has any."""
        return self._batch_of(rows).held

    def numbers(self, rows: list[int]) -> tuple[Floats, Ints]:
        """Of each of `rows`: presence, frequency and repetition penalty, [R, 3]; number of biases,
        number of tokens held back, and until which position, [R, 3]."""
        penalties = np.empty((len(rows), 3), np.float32)
        counts = np.zeros((len(rows), 3), np.int32)
        penalties[:] = NONE
        for index, row in enumerate(rows) if self._rows else ():
            features = self._rows.get(row)
            if features is None:
                continue
            if features.seen is not None:
                penalties[index] = features.seen.penalties
            if features.bias is not None:
                counts[index, 0] = len(features.bias[0])
            if features.held is not None:
                counts[index, 1:] = len(features.held.tokens), features.held.until
        return penalties, counts

    def _batch_of(self, rows: list[int]) -> BatchLogitsProcessors:
        if self._rows and self._batch.rows != rows:
            self._batch = _batch([self._rows.get(row) for row in rows], rows)
        return self._batch


def logits_processors_of(tokens: Ints, admit: Admit) -> RowLogitsProcessors | None:
    """The features of a row with these known tokens, or None if it uses none."""
    sampling, prompt_tokens = admit.sampling, admit.prompt_tokens
    penalties = penalties_of(sampling)
    features = RowLogitsProcessors(
        bias=_bias(sampling.logit_bias) if sampling.logit_bias else None,
        seen=SeenState(tokens, prompt_tokens, penalties) if penalties != NONE else None,
        dry=DryState(tokens, sampling) if sampling.dry_multiplier else None,
        held=_held(admit) if admit.suppressed_tokens else None,
        on_device=samples_on_device(sampling, admit.suppressed_tokens),
    )
    lists = (features.bias, features.seen, features.dry, features.held)
    return features if any(part is not None for part in lists) else None


def _batch(features: list[RowLogitsProcessors | None], rows: list[int]) -> BatchLogitsProcessors:
    biases = [of_row.bias if of_row else None for of_row in features]
    seen = [of_row.seen if of_row else None for of_row in features]
    dry = [of_row.dry if of_row else None for of_row in features]
    held = [of_row.held if of_row else None for of_row in features]
    return BatchLogitsProcessors(
        rows=list(rows),
        bias=_listed(biases) if any(biases) else None,
        seen=SeenRows(seen) if any(seen) else None,
        dry=DryRows(dry) if any(dry) else None,
        held=held if any(held) else None,
    )


def _held(admit: Admit) -> MinTokensBan:
    return MinTokensBan(np.array(admit.suppressed_tokens, np.int32), admit.suppressed_until)


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
