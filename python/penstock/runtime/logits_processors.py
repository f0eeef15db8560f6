"""The logits processors of the rows: logit bias, penalties, DRY and min_tokens.

A row whose request uses none of them has no entry in the table. A step without such rows costs
nothing.
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
    """The logits processors of one row, each None if the row does not use it.

    `bias`: token ids and their logit biases.
    `seen`: the tokens to which penalties apply.
    `dry`: the repetitions for DRY.
    `min_tokens`: the stop tokens to suppress.
    `on_device`: a device can apply all of them.
    """

    bias: Listed | None
    seen: SeenState | None
    dry: DryState | None
    min_tokens: MinTokensBan | None
    on_device: bool

    @property
    def has_state(self) -> bool:
        """Whether the distribution of the next token depends on the token sampled before it."""
        return self.seen is not None or self.dry is not None

    def extend(self, tokens: Ints) -> None:
        """Update penalties and DRY with further tokens of the answer."""
        if self.seen is not None:
            self.seen.counts.extend(tokens)
        if self.dry is not None:
            self.dry.repetitions.extend(tokens)


@dataclass(frozen=True, slots=True)
class BatchLogitsProcessors:
    """The logits processors of the rows of a step, each None if no row uses it. Valid until one of
    the rows is admitted or released."""

    rows: list[int] = field(default_factory=list)
    bias: TokenValues | None = None
    seen: SeenRows | None = None
    dry: DryRows | None = None
    min_tokens: list[MinTokensBan | None] | None = None


class LogitsProcessorTable:
    """The logits processors of all rows that use any."""

    def __init__(self) -> None:
        self._rows: dict[int, RowLogitsProcessors] = {}
        self._batch = BatchLogitsProcessors()

    def admit(self, tokens: Ints, admit: Admit) -> None:
        """Replace the logits processors of a row by those that a new sequence uses. `tokens`: the
        known tokens of the sequence."""
        self.release(admit.row)
        processors = logits_processors_of(tokens, admit)
        if processors is not None:
            self._rows[admit.row] = processors

    def release(self, row: int) -> None:
        """Forget the logits processors of `row`."""
        self._rows.pop(row, None)
        self._batch = BatchLogitsProcessors()

    def append(self, rows: list[int], token_ids: Ints) -> None:
        """Append `token_ids[i]` to the sequence of `rows[i]`. Each row occurs once. A negative
        token is skipped."""
        batch = self._batch_of(rows)
        if batch.seen is not None:
            batch.seen.append(token_ids)
        if batch.dry is not None:
            batch.dry.append(token_ids)

    def extend(self, row: int, token_ids: Ints) -> None:
        """Append several tokens to the sequence of one row."""
        processors = self._rows.get(row)
        if processors is not None:
            processors.extend(token_ids)

    def of(self, row: int) -> RowLogitsProcessors | None:
        """Return the logits processors of a row, or None if it uses none."""
        return self._rows.get(row)

    def need_cpu(self, rows: list[int]) -> bool:
        """Return whether any of `rows` has logits processors that a device cannot apply."""
        if not self._rows:
            return False
        return any(row in self._rows and not self._rows[row].on_device for row in rows)

    def has_state(self, row: int) -> bool:
        """Return whether the distribution of the next token of `row` depends on the token sampled
        before it."""
        processors = self._rows.get(row)
        return processors is not None and processors.has_state

    def lists(
        self, rows: list[int]
    ) -> tuple[TokenValues | None, SeenTokens | None, TokenValues | None]:
        """Return the logit biases, the seen tokens and the DRY penalties of `rows`. Each of the
        three is None if no row uses it."""
        batch = self._batch_of(rows)
        seen = None if batch.seen is None else batch.seen.tokens()
        return batch.bias, seen, None if batch.dry is None else batch.dry.penalties()

    def min_tokens_bans(self, rows: list[int]) -> list[MinTokensBan | None] | None:
        """Return the min_tokens ban of each of `rows`, None for a row without one. Return None if
        no row has a ban."""
        return self._batch_of(rows).min_tokens

    def adjustments(self, rows: list[int]) -> tuple[Floats, Ints]:
        """Return the numbers that the device stores for each of `rows`.

        Penalties [R, 3] float32: presence, frequency, repetition. Counts [R, 3] int32: number of
        logit biases, number of suppressed tokens, position until which they are suppressed.
        """
        penalties = np.empty((len(rows), 3), np.float32)
        counts = np.zeros((len(rows), 3), np.int32)
        penalties[:] = NONE
        for index, row in enumerate(rows) if self._rows else ():
            processors = self._rows.get(row)
            if processors is None:
                continue
            if processors.seen is not None:
                penalties[index] = processors.seen.penalties
            if processors.bias is not None:
                counts[index, 0] = len(processors.bias[0])
            if (ban := processors.min_tokens) is not None:
                counts[index, 1:] = len(ban.tokens), ban.until
        return penalties, counts

    def _batch_of(self, rows: list[int]) -> BatchLogitsProcessors:
        if self._rows and self._batch.rows != rows:
            self._batch = _batch([self._rows.get(row) for row in rows], rows)
        return self._batch


def logits_processors_of(tokens: Ints, admit: Admit) -> RowLogitsProcessors | None:
    """Return the logits processors of a row, or None if it uses none. `tokens`: the known tokens of
    the row."""
    sampling, prompt_tokens = admit.sampling, admit.prompt_tokens
    penalties = penalties_of(sampling)
    processors = RowLogitsProcessors(
        bias=_bias(sampling.logit_bias) if sampling.logit_bias else None,
        seen=SeenState(tokens, prompt_tokens, penalties) if penalties != NONE else None,
        dry=DryState(tokens, sampling) if sampling.dry_multiplier else None,
        min_tokens=_min_tokens_ban(admit) if admit.suppressed_tokens else None,
        on_device=samples_on_device(sampling, admit.suppressed_tokens),
    )
    parts = (processors.bias, processors.seen, processors.dry, processors.min_tokens)
    return processors if any(part is not None for part in parts) else None


def _batch(parts: list[RowLogitsProcessors | None], rows: list[int]) -> BatchLogitsProcessors:
    biases = [one.bias if one else None for one in parts]
    seen = [one.seen if one else None for one in parts]
    dry = [one.dry if one else None for one in parts]
    bans = [one.min_tokens if one else None for one in parts]
    return BatchLogitsProcessors(
        rows=list(rows),
        bias=_listed(biases) if any(biases) else None,
        seen=SeenRows(seen) if any(seen) else None,
        dry=DryRows(dry) if any(dry) else None,
        min_tokens=bans if any(bans) else None,
    )


def _min_tokens_ban(admit: Admit) -> MinTokensBan:
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
