"""A step prepared on a device equals one built by NumPy, bit for bit, over random schedules.

The device is the CPU here, with the reference ops by default and with the Triton kernels if this
file runs in Triton's interpreter, as its last test makes it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialog import Sampling
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.gpu.host_transfers import HostTransfers
from penstock.runtime.gpu.row_table import DeviceRows
from penstock.runtime.gpu.state_words import StatePacker
from penstock.runtime.gpu.step_packing import StepPacker
from penstock.runtime.row_table import RowTable
from penstock.runtime.state_rows import StateTable
from penstock.scheduler import NewSequence, Scheduler
from penstock.scheduler.types import SampledToken, Scored, StepPlan, StepResult
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

CONTEXT, BLOCK, ROWS, BLOCKS, SLOTS = 64, 4, 4, 40, 3


def device_ops() -> TorchOps:
    if not INTERPRETED:
        return ReferenceOps()
    from penstock.kernels.triton import TritonOps

    return TritonOps("cpu")


class Pair:
    """The same steps by NumPy, which knows every token, and on the device, which samples them."""

    def __init__(self, padding: int) -> None:
        self.numpy = RowTable(ROWS, CONTEXT, BLOCK, states=StateTable(ROWS + 1))
        self.host = RowTable(ROWS, CONTEXT, BLOCK)
        self.padding = padding
        tokens = CONTEXT * ROWS
        self.packer = StepPacker(
            self.host,
            max_num_seqs=ROWS,
            max_chunks=8,
            step_tokens=tokens,
            max_blocks=CONTEXT // BLOCK,
            block_size=BLOCK,
            num_slots=SLOTS,
            states=StatePacker(ROWS),
        )
        self.link = HostTransfers(torch.device("cpu"), self.packer.max_words)
        self.device = DeviceRows(
            device_ops(),
            self.link,
            max_num_seqs=ROWS,
            max_blocks=CONTEXT // BLOCK,
            block_size=BLOCK,
            max_chunks=8,
            step_tokens=tokens,
            max_places=tokens,
            scratch_block=BLOCKS,
            vocab_size=9,
        )
        self.sent_nothing = 0

    def step(self, plan: StepPlan, random: np.random.Generator) -> StepResult:
        self.numpy.apply(plan)
        self.host.apply(plan)
        packed = self.packer.pack(plan, self.link.staging(), self.padding)
        self.sent_nothing += packed.num_words == 0
        self.device.update(packed)
        slots = self.device.prepare(packed)
        self._compare(plan, slots)
        sampled, tokens = [], []
        for chunk in plan.chunks:
            if not chunk.samples:
                continue
            own = random.integers(0, 9, 1 + len(chunk.draft_tokens)).tolist()
            agreed = 0
            while agreed < len(chunk.draft_tokens) and (own[agreed] == chunk.draft_tokens[agreed]):
                agreed += 1
            tokens += own
            self.numpy.extend(chunk.row, own[: agreed + 1])
            sampled += [SampledToken(chunk.row, token) for token in own[: agreed + 1]]
        tokens += [0] * (packed.sampled - len(tokens))
        self.device.append(packed, slots, torch.tensor(tokens, dtype=torch.int32))
        for one in sampled:  # the CPU reads them after the device
            self.host.extend(one.row, [one.token_id])
        scored = tuple(
            Scored(chunk.row, 0, -1.0) for chunk in plan.chunks for _ in range(chunk.num_scores)
        )
        return StepResult(plan.step, tuple(sampled), scored)

    def _compare(self, plan: StepPlan, slots) -> None:  # type: ignore[no-untyped-def]
        right = self.numpy.inputs(plan.chunks)
        chunks, tokens = len(plan.chunks), len(right.tokens)
        places = len(right.sample_rows)
        ours = slots.inputs
        pairs = [
            (ours.tokens[:tokens], right.tokens),
            (ours.positions[:tokens], right.positions),
            (ours.slots[:tokens], right.slots),
            (ours.query_starts[: chunks + 1], right.query_starts),
            (ours.context_lens[:chunks], right.context_lens),
            (ours.sample_rows[:places], right.sample_rows),
        ]
        for index, context in enumerate(right.context_lens):
            used = -(-context // BLOCK)
            pairs.append((ours.block_tables[index, :used], right.block_tables[index, :used]))
        rows, ahead = [], []
        for chunk in plan.chunks:
            if chunk.samples:
                rows += [chunk.row] * (1 + len(chunk.draft_tokens))
                ahead += range(1 + len(chunk.draft_tokens))
        if rows:
            sampling = self.numpy.sampling(rows, np.array(ahead))
            drawing = len(rows)
            pairs += [
                (slots.temperature[:drawing], sampling.temperature),
                (slots.top_k[:drawing], sampling.top_k),
                (slots.top_p[:drawing], sampling.top_p),
                (slots.min_p[:drawing], sampling.min_p),
                (slots.seed[:drawing], sampling.seed.view(np.int64)),
                (slots.position[:drawing], sampling.position.view(np.int64)),
            ]
        for name in ("source", "base", "target", "keep", "save", "save_after"):
            column = getattr(ours.states, name)
            assert column.data_ptr() % 16 == self.link.words.data_ptr() % 16
            pairs.append((column[:chunks], getattr(right.states, name)))
            assert len(column) == len(ours.context_lens)
        for column in (ours.states.source, ours.states.target):
            assert (column[chunks:] == ROWS).all()  # the padding row
        assert (ours.states.save[chunks:] < 0).all()
        for got, groups in (
            (ours.adapters, right.adapters),
            (ours.sampled_adapters, right.sampled_adapters),
        ):
            assert (got is None) == (groups is None)
            if got is not None and groups is not None:
                pairs += self._defined(got, groups)
        for got, expected in pairs:
            assert got.numpy().tobytes() == np.ascontiguousarray(expected).tobytes()

    def _defined(self, ours, right):  # type: ignore[no-untyped-def]
        """Return the defined part of groups; trailing groups may be empty."""
        used = int((right.starts < right.starts[-1]).sum())
        assert len(ours.slots) <= SLOTS and used <= len(ours.slots)
        assert (ours.starts[used:] == int(right.starts[-1])).all()
        for part in (ours.slots, ours.starts, ours.order):
            assert part.data_ptr() % 16 == self.link.words.data_ptr() % 16
        return [
            (ours.slots[:used], right.slots[:used]),
            (ours.starts[: used + 1], right.starts[: used + 1]),
            (ours.order[: right.starts[-1]], right.order[: right.starts[-1]]),
        ]


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 30),  # tokens of the prompt
        st.integers(1, 20),  # tokens of the answer
        st.floats(0, 2, width=32),
        st.integers(0, 2**64 - 1),
        st.sampled_from([None, None, 0]),  # prompt_logprobs
        st.sampled_from([-1, -1, *range(SLOTS)]),  # adapter slot
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=5 if INTERPRETED else 40)
@given(
    requests=REQUESTS,
    num_blocks=st.integers(13, BLOCKS),
    budget=st.integers(1, 40),
    speculation=st.booleans(),
    padding=st.sampled_from([0, 8]),
    snapshots=st.sampled_from([None, 3]),
)
def test_a_step_prepared_on_the_device_equals_numpys(
    requests: list[tuple[int, int, float, int, int | None, int]],
    num_blocks: int,
    budget: int,
    speculation: bool,
    padding: int,
    snapshots: int | None,
) -> None:
    scheduler = Scheduler(
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_model_len=min(CONTEXT, num_blocks * BLOCK),
        max_num_seqs=ROWS,
        max_num_batched_tokens=budget,
        speculation=speculation,
        state_snapshots=snapshots,
    )
    random = np.random.default_rng(len(requests))
    for index, (prompt, new, temperature, seed, scores, slot) in enumerate(requests):
        new = NewSequence(
            str(index),
            token_ids=tuple((7 * index + random.integers(0, 3, prompt)).tolist()),
            sampling=Sampling(temperature=temperature, top_k=prompt, top_p=0.5, min_p=0.25),
            seed=seed,
            max_tokens=new,
            prompt_logprobs=None if snapshots else scores,  # refused for recurrent layers
            adapter=str(slot),
        )
        scheduler.submit(new, adapter_slot=slot)
    pair = Pair(padding)
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(pair.step(plan, random), 0.01 + 0.001 * plan.num_tokens)


@pytest.mark.parametrize("slots", [(-1, -1), (-1, 2)])
def test_a_decode_without_changes_sends_nothing(slots: tuple[int, int]) -> None:
    scheduler = Scheduler(
        num_blocks=BLOCKS,
        block_size=BLOCK,
        max_model_len=CONTEXT,
        max_num_seqs=2,
        max_num_batched_tokens=16,
    )
    for index in range(2):
        prompt, sampling = (5, 6, 7), Sampling()
        new = NewSequence(
            str(index),
            token_ids=prompt,
            sampling=sampling,
            seed=1,
            max_tokens=13,
            adapter=str(slots[index]),
        )
        scheduler.submit(new, adapter_slot=slots[index])
    pair, random = Pair(8), np.random.default_rng(0)
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(pair.step(plan, random))
    assert pair.sent_nothing >= 8  # except for appended blocks


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_a_step_prepared_by_triton_kernels_equals_numpys() -> None:
    passes_interpreted(__file__)
