"""Copies the outputs of a step that the device samples to the CPU, and turns them into a
StepResult."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.host_transfers import Fetched, HostTransfers
from penstock.runtime.row_table import RowTable
from penstock.scheduler.types import SampledToken, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """The outputs of a step in flight.

    `rows`: the sampled rows.
    `fetched`: the tokens and log-probabilities that are being copied.
    `logprob_rows`: indices in `rows` for which log-probabilities are requested.
    """

    plan: StepPlan
    rows: list[int]
    fetched: Fetched
    logprob_rows: list[int]


class OutputReader:
    """Fetches the outputs of steps with `transfers` and appends the sampled tokens to `rows`."""

    def __init__(self, ops: TorchOps, rows: RowTable, transfers: HostTransfers) -> None:
        self._ops = ops
        self._rows = rows
        self._transfers = transfers

    def fetch(
        self, plan: StepPlan, sampled: list[int], logits: torch.Tensor, tokens: torch.Tensor | None
    ) -> StepOutputs:
        """Start to copy the outputs of a launched step to the CPU. `tokens`: None if no row is
        sampled."""
        logprob_rows = [
            i for i, row in enumerate(sampled) if self._rows.top_logprobs[row] is not None
        ]
        results = [] if tokens is None else [tokens]
        if logprob_rows and tokens is not None:
            count = max(self._rows.top_logprobs[sampled[index]] or 0 for index in logprob_rows)
            rows = self._transfers.index(logprob_rows)
            chosen = tokens[rows.long()].clamp(min=0)
            results += self._ops.top_logprobs(logits, rows, chosen, count)
        return StepOutputs(plan, sampled, self._transfers.fetch(results), logprob_rows)

    def read(self, outputs: StepOutputs) -> StepResult:
        """Wait for the outputs of a step, append its tokens to their rows and return its result."""
        arrived = outputs.fetched.wait()
        if not outputs.rows:
            return StepResult(outputs.plan.step, ())
        token_ids, *best = arrived
        token_ids = token_ids[: len(outputs.rows)]
        self._rows.append(outputs.rows, token_ids)
        return StepResult(outputs.plan.step, self._sampled_tokens(outputs, token_ids, best))

    def _sampled_tokens(
        self, outputs: StepOutputs, token_ids: Ints, best: list[Any]
    ) -> tuple[SampledToken, ...]:
        logprobs = {}
        if outputs.logprob_rows:
            own, ids, values = (part.tolist() for part in best)
            by_row = zip(own, ids, values, strict=True)
            logprobs = dict(zip(outputs.logprob_rows, by_row, strict=True))
        sampled = []
        for index, (row, token) in enumerate(zip(outputs.rows, token_ids.tolist(), strict=True)):
            if token < 0:
                sampled.append(SampledToken(row, token, failed=True))
            elif index not in logprobs:
                sampled.append(SampledToken(row, token))
            else:
                logprob, ids, values = logprobs[index]
                pairs = [p for p in zip(ids, values, strict=True) if p[1] > -math.inf]
                top = tuple(pairs[: self._rows.top_logprobs[row]])
                sampled.append(SampledToken(row, token, logprob, top))
        return tuple(sampled)
