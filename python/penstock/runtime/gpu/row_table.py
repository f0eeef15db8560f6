"""The table of rows on a device: its memory, and the steps prepared from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import torch

from penstock.kernels.ops_interface import StepInputs
from penstock.kernels.persistent_batch import Adjustments, RowState, StepBuffers, Upload
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.gpu.host_transfers import HostTransfers
from penstock.runtime.gpu.step_packing import Packed
from penstock.scheduler import MOST_BIASES, MOST_HELD_BACK

Slots: TypeAlias = "StepBuffers[torch.Tensor]"


def rows_bytes(
    max_num_seqs: int,
    max_blocks: int,
    max_chunks: int,
    step_tokens: int,
    max_places: int,
    vocab_size: int,
) -> int:
    """What `DeviceRows` of these sizes take, beside the words of the link."""
    adjust = 6 + vocab_size + 2 * MOST_BIASES + MOST_HELD_BACK
    state = (max_num_seqs + 1) * 4 * (6 + 2 + max_blocks + adjust)
    chunks = 4 * (2 * max_chunks + 1 + max_chunks * max_blocks)
    return state + chunks + 4 * 3 * step_tokens + max_places * 4 * (6 + 4)


class DeviceRows:
    """Rows of `max_num_seqs` sequences with up to `max_blocks` blocks, and the one that fills
    steps up,
    whose only token is written to `scratch_block`. Steps have up to `max_chunks` chunks,
    `step_tokens` tokens and `max_places` places whose logits, of `vocab_size` tokens, are wanted.
    """

    def __init__(
        self,
        ops: TorchOps,
        link: HostTransfers,
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
        self._link = link
        self._block_size = block_size
        device = link.words.device
        self._state = _new_state(max_num_seqs + 1, max_blocks, vocab_size, device)
        self._state.known[max_num_seqs] = 1
        self._state.tables[max_num_seqs] = scratch_block
        self._slots = _new_slots(max_chunks, step_tokens, max_places, max_blocks, device)

    @property
    def adjustments(self) -> Adjustments[torch.Tensor]:
        """What changes the logits of rows, for `LogitAdjustments` to write to."""
        return self._state.adjust

    def update(self, packed: Packed) -> None:
        """Send a step's words and take in the changes among them."""
        if packed.num_words == 0:
            return
        self._link.send(packed.num_words)
        if packed.num_updates or packed.num_runs:
            self._ops.update_rows(self._state, self._upload(packed))

    def prepare(self, packed: Packed) -> Slots:
        """The inputs of the step that was sent last; valid until the next is prepared."""
        blocks = packed.blocks or self._slots.inputs.block_tables.shape[1]
        slots = self._slots.cut(packed.chunks, packed.tokens, packed.places, packed.sampled, blocks)
        upload = self._upload(packed)
        self._ops.prepare_step(self._state, upload, slots, packed.chunks, self._block_size)
        if packed.groups is None:
            return slots
        tokens, sampled = packed.groups.read(self._link.words)
        inputs = replace(slots.inputs, adapters=tokens, sampled_adapters=sampled)
        return replace(slots, inputs=inputs)

    def adjust(self, logits: torch.Tensor, slots: Slots) -> None:
        """Change the logits [S, V] that the prepared step samples from."""
        self._ops.adjust_rows(logits, self._state.adjust, slots.rows, slots.position)

    def append(self, packed: Packed, slots: Slots, tokens: torch.Tensor) -> None:
        """`tokens: [S]` sampled in the prepared step join their rows."""
        lengths = slots.inputs.context_lens
        self._ops.append_tokens(self._state, self._upload(packed), lengths, tokens, packed.chunks)

    def _upload(self, packed: Packed) -> Upload[torch.Tensor]:
        return Upload(
            self._link.words,
            packed.tokens_at,
            packed.updates_at,
            packed.num_updates,
            packed.runs_at,
            packed.num_runs,
        )


def _new_state(
    rows: int, max_blocks: int, vocab_size: int, device: torch.device
) -> RowState[torch.Tensor]:
    """Rows that nobody has: greedy."""

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
        adjust=Adjustments(
            presence=room(rows, dtype=torch.float32),
            frequency=room(rows, dtype=torch.float32),
            repetition=room(rows, dtype=torch.float32) + 1,
            num_biases=room(rows),
            num_suppressed=room(rows),
            suppressed_until=room(rows),
            counts=room(rows, vocab_size),
            bias_tokens=room(rows, MOST_BIASES),
            bias_values=room(rows, MOST_BIASES, dtype=torch.float32),
            suppressed=room(rows, MOST_HELD_BACK),
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
