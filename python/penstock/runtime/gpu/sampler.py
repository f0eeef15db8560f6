"""Sampling on a device, or on the CPU from the device's logits, with the same tokens on all ranks.

Only rank 0 samples. Tokens that its device samples are broadcast to the streams of the other ranks.
Tokens that its CPU samples are sent to the other processes. So no rank can diverge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.gpu.host_transfers import copy_to_device
from penstock.runtime.protocol import Masks
from penstock.runtime.row_table import RowTable
from penstock.runtime.sampler import Sampler
from penstock.scheduler.types import StepPlan, StepResult

SampledTokens = tuple[tuple[int, tuple[int, ...]], ...]
"""Pairs of a row and the tokens sampled for it. A row whose logits were not finite is left out."""

Broadcast = Callable[[torch.Tensor], torch.Tensor]
"""Copies a tensor of rank 0 to every rank, in place, and returns it."""


class DeviceSampler(Protocol):
    def sample(
        self, logits: torch.Tensor, rows: SamplingRows, masks: Masks | None = None
    ) -> torch.Tensor:
        """Sample one token per row of `logits` [S, V], which is modified in place. Wait for `masks`
        to be computed, but not for the device. Return the tokens [S] int32 on the device."""

    def finish(self, plan: StepPlan, logits: torch.Tensor, masks: Masks | None) -> StepResult:
        """Sample a step on the CPU, append the tokens to the row table and return the result of the
        step."""


MakeSampler = Callable[[TorchOps, RowTable], DeviceSampler]


class SingleDeviceSampler:
    """The sampler of a model on one device."""

    def __init__(self, ops: TorchOps, rows: RowTable) -> None:
        self._ops = ops
        self._sampler = Sampler(rows, CpuSampler(ops))

    def sample(
        self, logits: torch.Tensor, rows: SamplingRows, masks: Masks | None = None
    ) -> torch.Tensor:
        if masks is not None:
            parts: Any = [copy_to_device(part, logits.device) for part in masks.wait()]
            rows = replace(rows, masks=parts[0], mask_of=parts[1])
        tokens: torch.Tensor = self._ops.sample(logits, rows)
        return tokens

    def finish(self, plan: StepPlan, logits: Any, masks: Masks | None) -> StepResult:
        return self._sampler.finish(plan, logits, masks)


class LeaderSampler:
    """The sampler of rank 0. `broadcast`: sends tokens that the device sampled to the other ranks.
    `send`: sends tokens that the CPU sampled to them."""

    def __init__(
        self,
        broadcast: Broadcast,
        send: Callable[[SampledTokens], None],
        ops: TorchOps,
        rows: RowTable,
    ) -> None:
        self._own = SingleDeviceSampler(ops, rows)
        self._broadcast = broadcast
        self._send = send

    def sample(
        self, logits: torch.Tensor, rows: SamplingRows, masks: Masks | None = None
    ) -> torch.Tensor:
        return self._broadcast(self._own.sample(logits, rows, masks))

    def finish(self, plan: StepPlan, logits: torch.Tensor, masks: Masks | None) -> StepResult:
        result = self._own.finish(plan, logits, masks)
        self._send(tokens_of(result))
        return result


class FollowerSampler:
    """The sampler of a rank other than 0. `broadcast`: receives tokens that the device of rank 0
    sampled. `receive`: waits for tokens that the CPU of rank 0 sampled."""

    def __init__(
        self,
        broadcast: Broadcast,
        receive: Callable[[], SampledTokens],
        ops: TorchOps,
        rows: RowTable,
    ) -> None:
        self._rows = rows
        self._broadcast = broadcast
        self._receive = receive

    def sample(
        self, logits: torch.Tensor, rows: SamplingRows, masks: Masks | None = None
    ) -> torch.Tensor:
        return self._broadcast(torch.empty(len(logits), dtype=torch.int32, device=logits.device))

    def finish(self, plan: StepPlan, logits: torch.Tensor, masks: Masks | None) -> StepResult:
        for row, token_ids in self._receive():
            self._rows.extend(row, token_ids)
        return StepResult(plan.step, ())


def tokens_of(result: StepResult) -> SampledTokens:
    """Return the tokens of a result by row, without failed rows."""
    tokens: dict[int, list[int]] = {}
    for one in result.sampled:
        if not one.failed:
            tokens.setdefault(one.row, []).append(one.token_id)
    return tuple((row, tuple(sampled)) for row, sampled in tokens.items())


class CpuSampler:
    """`SamplingOps` for steps in which the CPU takes part in sampling. Logits are tensors on the
    device; all other arguments and the results are numpy arrays."""

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
