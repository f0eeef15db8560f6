"""The persistent batch on a device: its memory, and the inputs of steps that are built from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import torch

from penstock.kernels.persistent_batch import Adjustments, RowState, StepBuffers, Upload
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.gpu.host_transfers import HostTransfers
from penstock.runtime.gpu.step_packing import Packed
from penstock.scheduler import MAX_LOGIT_BIASES, MAX_SUPPRESSED_TOKENS

Slots: TypeAlias = "StepBuffers[torch.Tensor]"


def rows_bytes(
    max_num_seqs: int,
    max_blocks: int,
    max_chunks: int,
    step_tokens: int,
    max_places: int,
    vocab_size: int,
) -> int:
    """Return the bytes of a `DeviceRows` with these sizes, without the words of `HostTransfers`.
    The parameters are those of `DeviceRows`."""
    adjust = 6 + vocab_size + 2 * MAX_LOGIT_BIASES + MAX_SUPPRESSED_TOKENS
    state = (max_num_seqs + 1) * 4 * (7 + 2 + max_blocks + adjust)
    chunks = 4 * (2 * max_chunks + 1 + max_chunks * max_blocks)
    return state + chunks + 4 * 3 * step_tokens + max_places * 4 * (6 + 4)


class DeviceRows:
    """The persistent batch on a device, and the buffers for the inputs of a step.

    `max_num_seqs`: number of rows for sequences. One more row is for padding.
    `max_blocks`: most KV blocks of a sequence.
    `max_chunks`, `step_tokens`: most chunks and most tokens of a step.
    `max_places`: most tokens of a step whose logits are computed.
    `scratch_block`: the KV block to which the token of the padding row is written.
    `vocab_size`: number of logits per token.
    """

    def __init__(
        self,
        ops: TorchOps,
        transfers: HostTransfers,
        *,
        max_num_seqs: int,
        max_blocks: int,
        block_size: int,
        max_chunks: int,
        step_tokens: int,
        max_places: int,
        scratch_block: int,
        vocab_size: int,
    ) -> None:
        self._ops = ops
        self._transfers = transfers
        self._block_size = block_size
        device = transfers.words.device
        self._state = _new_state(max_num_seqs + 1, max_blocks, vocab_size, device)
        self._state.known[max_num_seqs] = 1
        self._state.tables[max_num_seqs] = scratch_block
        self._slots = _new_slots(max_chunks, step_tokens, max_places, max_blocks, device)

    @property
    def adjustments(self) -> Adjustments[torch.Tensor]:
        """The tables of the logits processors, which `LogitAdjustments` writes."""
        return self._state.adjust

    def update(self, packed: Packed) -> None:
        """Send the words of a step to the device and apply the row updates that they contain."""
        if packed.num_words == 0:
            return
        self._transfers.send(packed.num_words)
        if packed.num_updates or packed.num_runs:
            self._ops.update_rows(self._state, self._upload(packed))

    def prepare(self, packed: Packed) -> Slots:
        """Return the inputs of the step that was sent last. They are valid until the next step is
        prepared."""
        slots = self.slots_of(packed)
        upload = self._upload(packed)
        self._ops.prepare_step(self._state, upload, slots, packed.chunks, self._block_size)
        inputs = slots.inputs
        if packed.groups is not None:
            tokens, sampled = packed.groups.read(self._transfers.words)
            inputs = replace(inputs, adapters=tokens, sampled_adapters=sampled)
        if packed.states is not None:
            inputs = replace(inputs, states=packed.states.read(self._transfers.words))
        return replace(slots, inputs=inputs)

    def slots_of(self, packed: Packed) -> Slots:
        """Return the inputs of the step that was prepared last, without adapters. `packed`: the
        step, or its first chunks."""
        blocks = packed.blocks or self._slots.inputs.block_tables.shape[1]
        return self._slots.cut(packed.chunks, packed.tokens, packed.places, packed.sampled, blocks)

    def adjust(self, logits: torch.Tensor, slots: Slots) -> None:
        """Apply the logits processors to the logits [S, V] of the prepared step, in place."""
        self._ops.adjust_rows(logits, self._state.adjust, slots.rows, slots.position)

    def append(self, packed: Packed, slots: Slots, tokens: torch.Tensor) -> None:
        """Append `tokens: [S]`, which were sampled in the prepared step, to the rows for which they
        were sampled."""
        lengths = slots.inputs.context_lens
        self._ops.append_tokens(self._state, self._upload(packed), lengths, tokens, packed.chunks)

    def _upload(self, packed: Packed) -> Upload[torch.Tensor]:
        return Upload(
            self._transfers.words,
            packed.tokens_at,
            packed.updates_at,
            packed.num_updates,
            packed.runs_at,
            packed.num_runs,
        )


def _new_state(
    rows: int, max_blocks: int, vocab_size: int, device: torch.device
) -> RowState[torch.Tensor]:
    """Return the state of `rows` empty rows with greedy sampling."""

    def room(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return RowState(
        known=room(rows),
        last_token=room(rows),
        tables=room(rows, max_blocks),
        temperature=room(rows, dtype=torch.float32),
        top_k=room(rows),
        top_p=room(rows, dtype=torch.float32) + 1,
        min_p=room(rows, dtype=torch.float32),
        seed=room(rows, dtype=torch.int64),
        rope_shift=room(rows),
        adjust=Adjustments(
            presence=room(rows, dtype=torch.float32),
            frequency=room(rows, dtype=torch.float32),
            repetition=room(rows, dtype=torch.float32) + 1,
            num_biases=room(rows),
            num_suppressed=room(rows),
            suppressed_until=room(rows),
            counts=room(rows, vocab_size),
            bias_tokens=room(rows, MAX_LOGIT_BIASES),
            bias_values=room(rows, MAX_LOGIT_BIASES, dtype=torch.float32),
            suppressed=room(rows, MAX_SUPPRESSED_TOKENS),
        ),
    )


def _new_slots(
    chunks: int, tokens: int, places: int, max_blocks: int, device: torch.device
) -> Slots:
    def room(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    inputs = StepInputs(
        tokens=room(tokens),
        positions=room(tokens),
        slots=room(tokens),
        query_starts=room(chunks + 1),
        context_lens=room(chunks),
        block_tables=room(chunks, max_blocks),
        sample_rows=room(places),
    )
    return StepBuffers(
        inputs,
        temperature=room(places, dtype=torch.float32),
        top_k=room(places),
        top_p=room(places, dtype=torch.float32),
        min_p=room(places, dtype=torch.float32),
        seed=room(places, dtype=torch.int64),
        position=room(places, dtype=torch.int64),
        rows=room(places),
    )
