"""Who samples the tokens of a step on a device: the device itself, or the host over its logits; and
how the ranks of a model come to have the same ones.

Rank 0 samples. What its device drew goes to the others on their streams, what its host drew goes to
their hosts, so that no rank can drift from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.protocol import Masks
from penstock.runtime.row_table import RowTable
from penstock.runtime.sampler import Sampler
from penstock.scheduler.types import StepPlan, StepResult

SampledTokens = tuple[tuple[int, tuple[int, ...]], ...]
"""Rows, and the tokens that follow their known ones; none of a row whose draw failed."""

Share = Callable[[torch.Tensor], torch.Tensor]
"""Tokens of rank 0 on every rank, in place."""


class DeviceSampler(Protocol):
    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        """[S, V], adjusted in place -> [S] int32 on the device, without waiting for anything."""

    def finish(self, plan: StepPlan, logits: torch.Tensor, masks: Masks | None) -> StepResult:
        """What a step gives that the host samples. The table of rows learns of it."""


MakeSampler = Callable[[TorchOps, RowTable], DeviceSampler]


class SingleDeviceSampler:
    """Of a model on one device."""

    def __init__(self, ops: TorchOps, rows: RowTable) -> None:
        self._ops = ops
        self._sampler = Sampler(rows, _HostSampler(ops))

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        return self._ops.sample(logits, rows)

    def finish(self, plan: StepPlan, logits: Any, masks: Masks | None) -> StepResult:
        return self._sampler.finish(plan, logits, masks)


class LeaderSampler:
    """Of rank 0. `tell`: pass on what the host drew in a step."""

    def __init__(
        self, share: Share, tell: Callable[[SampledTokens], None], ops: TorchOps, rows: RowTable
    ) -> None:
        self._own = SingleDeviceSampler(ops, rows)
        self._share = share
        self._tell = tell

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        return self._share(self._own.sample(logits, rows))

    def finish(self, plan: StepPlan, logits: torch.Tensor, masks: Masks | None) -> StepResult:
        result = self._own.finish(plan, logits, masks)
        self._tell(tokens_of(result))
        return result


class FollowerSampler:
    """Of any other rank. `hear`: what rank 0's host drew in a step, once it is there."""

    def __init__(
        self, share: Share, hear: Callable[[], SampledTokens], ops: TorchOps, rows: RowTable
    ) -> None:
        self._rows = rows
        self._share = share
        self._hear = hear

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        return self._share(torch.empty(len(logits), dtype=torch.int32, device=logits.device))

    def finish(self, plan: StepPlan, logits: torch.Tensor, masks: Masks | None) -> StepResult:
        for row, token_ids in self._hear():
            self._rows.extend(row, token_ids)
        return StepResult(plan.step, ())


def tokens_of(result: StepResult) -> SampledTokens:
    """What rows learn from the result of a step."""
    tokens: dict[int, list[int]] = {}
    for one in result.sampled:
        if not one.failed:
            tokens.setdefault(one.row, []).append(one.token_id)
    return tuple((row, tuple(sampled)) for row, sampled in tokens.items())


class _HostSampler:
    """A `SamplingOps` for steps in which the host has a part: logits are the device's tensors, what
    goes in and comes out is the host's."""

    def __init__(self, ops: TorchOps) -> None:
        self._ops = ops

    def sample(self, logits: Any, rows: SamplingRows) -> Ints:
        tokens: Ints = self._ops.sample(logits, rows).cpu().numpy().astype(np.int32)
        return tokens

    def top_logprobs(
        self, logits: Any, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        chosen, sampled = (torch.from_numpy(part).to(logits.device) for part in (rows, tokens))
        own, ids, values = self._ops.top_logprobs(logits, chosen, sampled, count)
        return own.cpu().numpy(), ids.cpu().numpy(), values.cpu().numpy()
