"""The steps of a drafter on a device.

A step of few tokens is one replay of a CUDA graph, in which each token is a row of its own, so that
one graph serves rows with any numbers of tokens. A longer step is launched kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.cuda_graphs import Capturer, DecodeGraphs
from penstock.runtime.gpu.host_transfers import copy_to_device
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS
from penstock.runtime.gpu.sent_inputs import SentInputs, filled_up, padding, single_tokens

Results: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"  # logits and hidden states
Forward: TypeAlias = "Callable[[StepInputs[torch.Tensor], Carried | None, bool], Results]"
"""Runs a forward pass over the inputs of a step. The flag says that each row has one token, and
that the inputs are at the same addresses as in the last such step."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Hidden states that a step reads: rows[index[t]] for token t. [M, W], [T] int32."""

    rows: torch.Tensor
    index: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most tokens, rows, and KV blocks of a row of a step, and the block for padding."""

    tokens: int
    rows: int
    blocks: int
    scratch_block: int
    block_size: int


class DraftSteps:
    """Runs steps of `forward` within `limits`.

    `capturer`: captures steps of up to `HEAD_TOKENS` tokens.
    `device`: where the steps run.
    `states`: memory for the hidden states that a captured step reads, [HEAD_TOKENS, W]; None: it
        reads none.
    """

    def __init__(
        self,
        forward: Forward,
        capturer: Capturer,
        limits: StepLimits,
        device: torch.device,
        states: torch.Tensor | None = None,
    ) -> None:
        self._forward = forward
        self._limits = limits
        rows, tokens = max(limits.rows, HEAD_TOKENS), max(limits.tokens, HEAD_TOKENS)
        self._sent = SentInputs(device, tokens, rows, limits.blocks)
        self._states = states
        self._index = torch.arange(HEAD_TOKENS, dtype=torch.int32, device=device)
        self._inputs: StepInputs[torch.Tensor] | None = None
        self._graphs: DecodeGraphs[bool, Results] = DecodeGraphs(
            capturer, HEAD_TOKENS, self._compute, self._clear
        )

    @property
    def captured(self) -> list[tuple[int, bool]]:
        """The captured graphs: the number of tokens, and whether they compute logits."""
        return self._graphs.captured

    def run(
        self, inputs: StepInputs[Ints], rows: torch.Tensor | None = None, index: Ints | None = None
    ) -> Results:
        """Run a step of T tokens, on the stream of the steps. `rows`, `index`: see `Carried`; None
        for a model that reads no hidden states.

        Return the logits [S, V] float32 and the hidden states [T, W], valid until the next call.
        """
        count = len(inputs.tokens)
        places = np.zeros(count, np.int32) if index is None else index
        if count > HEAD_TOKENS:
            sent, sent_places = self._sent.send(inputs, places)
            carried = None if rows is None else Carried(rows, sent_places)
            return self._forward(sent, carried, False)
        limits, samples = self._limits, len(inputs.sample_rows) > 0
        size = self._graphs.size_for(count)
        self._graphs.make(size, samples)
        single = filled_up(single_tokens(inputs), size, limits.scratch_block, limits.block_size)
        self._inputs, sent_places = self._sent.send(single, places, limits.blocks)
        if rows is not None and self._states is not None:
            torch.index_select(rows, 0, sent_places, out=self._states[:count])
        logits, states = self._graphs.replay(size, samples)
        carried_on = None if states is None else states[:count]
        return _sampled(logits, inputs.sample_rows, count), carried_on

    def warm(self) -> None:
        """Capture the graphs that a decode step of one row needs."""
        for samples in (False, True):
            self._graphs.make(1, samples)

    def prepare(self) -> bool:
        """Capture one more graph. Return False if none is missing; see `DecodeGraphs.missing`."""
        missing = self._graphs.missing()
        if missing is not None:
            self._graphs.make(*missing)
        return missing is not None

    def _compute(self, size: int, samples: bool) -> Results:
        inputs = self._inputs
        assert inputs is not None
        if not samples:
            inputs = replace(inputs, sample_rows=inputs.sample_rows[:0])
        carried = None
        if self._states is not None:
            carried = Carried(self._states[:size], self._index[:size])
        return self._forward(inputs, carried, True)

    def _clear(self, size: int, samples: bool) -> None:
        """Fill the inputs of a step with padding, before a capture."""
        limits = self._limits
        step = padding(size, limits.scratch_block, limits.block_size)
        self._inputs, _ = self._sent.send(step, np.zeros(size, np.int32), limits.blocks)


def _sampled(logits: torch.Tensor, places: Ints, count: int) -> torch.Tensor:
    """Return the rows `places` of the logits of `count` tokens."""
    if len(places) in (0, count):
        return logits[: len(places)]
    return logits.index_select(0, copy_to_device(places, logits.device))
