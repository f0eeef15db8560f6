"""The CPU runtime over a backend without a model, driven by the real scheduler."""

from __future__ import annotations

import numpy as np
import pytest
from fake_backend import FakeBackend, answer_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialog import Sampling
from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.protocol import RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.scheduler import (
    Admit,
    AppendBlocks,
    AppendTokens,
    Chunk,
    NewSequence,
    Progress,
    Scheduler,
    StepPlan,
)

BLOCK = 4


class Setup:
    def __init__(
        self, num_blocks: int = 40, max_num_seqs: int = 4, max_num_batched_tokens: int = 16
    ) -> None:
        context = 64
        self.backend = FakeBackend(num_blocks, BLOCK)
        info = RuntimeInfo("m", "f", 64, context, num_blocks, BLOCK, 0)
        self.runtime = CpuRuntime(RowTable(max_num_seqs, context, BLOCK), self.backend, info, "")
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=BLOCK,
            max_model_len=min(context, num_blocks * BLOCK),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self.progress: list[Progress] = []

    def submit(self, id: str, prompt: list[int], max_tokens: int, **options: object) -> None:
        new = NewSequence(
            id,
            token_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            seed=7,
            max_tokens=max_tokens,
            **options,  # type: ignore[arg-type]
        )
        self.scheduler.submit(new)

    def run(self) -> None:
        while (plan := self.scheduler.plan()) is not None:
            self.progress += self.scheduler.commit(self.runtime.execute(plan))

    def answer(self, id: str) -> list[int]:
        return [p.token_id for p in self.progress if p.id == id and p.token_id is not None]


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(1, 20)),
        min_size=1,
        max_size=8,
    ),
    num_blocks=st.integers(13, 40),
    max_num_batched_tokens=st.integers(1, 40),
)
def test_answers_do_not_depend_on_batch_chunks_preemption_or_cache(
    prompts: list[tuple[int, int, int]], num_blocks: int, max_num_batched_tokens: int
) -> None:
    setup = Setup(num_blocks=num_blocks, max_num_batched_tokens=max_num_batched_tokens)
    expected = {}
    for index, (length, stem, max_tokens) in enumerate(prompts):
        prompt = [(stem * 7 + i) % 60 for i in range(length)]
        setup.submit(f"r{index}", prompt, max_tokens)
        expected[f"r{index}"] = answer_alone(prompt, max_tokens)
    setup.run()
    assert {id: setup.answer(id) for id in expected} == expected


def test_a_row_without_finite_logits_fails_alone() -> None:
    setup = Setup()
    setup.backend.poisoned = {59}
    setup.submit("bad", [1, 2, 59], 4)
    setup.submit("good", [1, 2, 3], 4)
    setup.run()
    finishes = {p.id: p.finish for p in setup.progress if p.finish}
    assert finishes == {"bad": "error", "good": "length"}
    assert setup.answer("good") == answer_alone([1, 2, 3], 4)


def test_logprobs_use_unmodified_logits_and_only_rows_that_request_them() -> None:
    setup = Setup()
    setup.submit("asks", [1, 2, 3], 2, top_logprobs=3)
    setup.submit("chosen only", [5, 6], 2, top_logprobs=0)
    setup.submit("silent", [9], 2)
    setup.run()
    of = {id: [p for p in setup.progress if p.id == id] for id in ("asks", "chosen only", "silent")}
    best = float(10.0 - np.log(np.exp(10.0) + 63))
    for progress in of["asks"]:
        assert progress.logprob == pytest.approx(best, abs=1e-6)
        assert len(progress.top) == 3
        assert progress.top[0] == (progress.token_id, progress.logprob)
    assert all(p.logprob is not None and p.top == () for p in of["chosen only"])
    assert all(p.logprob is None for p in of["silent"])


def test_sampling_parameters_follow_their_row_and_positions_count_known_tokens() -> None:
    setup = Setup()
    for row, sampling in enumerate(
        (
            Sampling(temperature=0.5, top_k=7, top_p=0.25, min_p=0.125),
            Sampling(),
            Sampling(temperature=0.0, top_k=-1),
        )
    ):
        plan = StepPlan(
            row,
            (),
            (Admit(row, tuple(range(row + 3)), row + 3, sampling, (1 << 64) + row, None),),
            (AppendBlocks(row, (row,) * 2),),
            (Chunk(row, 0, row + 3, True),),
        )
        setup.runtime.execute(plan)
    plan = StepPlan(9, (), (), (), tuple(Chunk(row, row + 3, 1, True) for row in (2, 0, 1)))
    setup.runtime.execute(plan)
    rows = setup.backend.last_sampling
    assert rows is not None
    assert rows.temperature.tolist() == [0.0, 0.5, 1.0]
    assert rows.top_k.tolist() == [0, 7, 0]
    assert rows.top_p.tolist() == [1.0, 0.25, 1.0]
    assert rows.min_p.tolist() == [0.0, 0.125, 0.0]
    assert rows.seed.tolist() == [2, 0, 1]
    assert rows.position.tolist() == [6, 4, 5]
    assert rows.seed.dtype == rows.position.dtype == np.uint64


def test_a_row_forgets_its_previous_sequence() -> None:
    setup = Setup(max_num_seqs=1)
    setup.submit("long", list(range(30)), 20)
    setup.submit("short", [3], 5)
    setup.run()
    assert setup.answer("short") == answer_alone([3], 5)


def test_a_new_sequence_uses_its_own_sampling_parameters() -> None:
    setup = Setup(max_num_seqs=1)
    for step, seed in enumerate((5, 6)):
        admit = Admit(0, (1, 2), 2, Sampling(temperature=float(seed)), seed, None)
        blocks = AppendBlocks(0, (step,))
        setup.runtime.execute(StepPlan(step, (), (admit,), (blocks,), (Chunk(0, 0, 2, True),)))
        rows = setup.backend.last_sampling
        assert rows is not None
        assert (rows.seed.tolist(), rows.temperature.tolist()) == ([seed], [seed])


def test_a_prefill_chunk_samples_nothing() -> None:
    setup = Setup(max_num_batched_tokens=4)
    setup.submit("a", list(range(6)), 1)
    plan = setup.scheduler.plan()
    assert plan is not None
    assert setup.runtime.execute(plan).sampled == ()


def test_close_closes_the_backend() -> None:
    setup = Setup()
    setup.runtime.close()
    assert setup.backend.closed


STATEFUL = Sampling(temperature=0.0, presence_penalty=0.5)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), STATEFUL], ids=["plain", "state"])
@pytest.mark.parametrize("right", range(5))
def test_a_draft_gives_the_same_tokens_as_without_speculation(
    sampling: Sampling, right: int
) -> None:
    """The first `right` of four draft tokens are accepted; another row has no draft."""
    setup, prompt, other = Setup(), [1, 2, 3], [4, 5]
    answer, beside = answer_alone(prompt, 9), answer_alone(other, 2)
    draft = [*answer[1 : 1 + right], *((token + 1) % 64 for token in answer[1 + right : 5])]
    admissions = (
        Admit(0, tuple(prompt), 3, sampling, 7, None),
        Admit(1, tuple(other), 2, Sampling(temperature=0.0), 7, 1),
    )
    blocks = (AppendBlocks(0, (0, 1, 2, 3)), AppendBlocks(1, (4, 5)))
    first = (Chunk(0, 0, 3, True), Chunk(1, 0, 2, True))
    execute = setup.runtime.execute
    sampled = execute(StepPlan(1, (), admissions, blocks, first)).sampled
    assert [one.token_id for one in sampled] == [answer[0], beside[0]]
    second = (Chunk(0, 3, 1, True, tuple(draft)), Chunk(1, 2, 1, True))
    sampled = execute(StepPlan(2, (), (), (), second)).sampled
    of_row = [one.token_id for one in sampled if one.row == 0]
    assert of_row == answer[1 : 2 + right]
    assert [(one.row, one.token_id) for one in sampled][-1] == (1, beside[1])
    assert sampled[-1].logprob is not None and sampled[-1].top[0][0] == beside[1]
    third = (Chunk(0, 4 + right, 1, True),)
    (last,) = execute(StepPlan(3, (), (), (), third)).sampled
    assert last.token_id == answer[2 + right]


def test_forced_tokens_are_computed_with_the_next_chunk() -> None:
    setup, prompt = Setup(), [1, 2, 3]
    execute = setup.runtime.execute
    admission = Admit(0, tuple(prompt), 3, STATEFUL, 7, None)
    blocks = AppendBlocks(0, (0, 1, 2))
    (sampled,) = execute(StepPlan(1, (), (admission,), (blocks,), (Chunk(0, 0, 3, True),))).sampled
    known = [*prompt, sampled.token_id, 9, 8, 7]
    forced = AppendTokens(0, (9, 8, 7))
    plan = StepPlan(2, (), (), (), (Chunk(0, 3, 4, True),), (forced,))
    (sampled,) = execute(plan).sampled
    assert [sampled.token_id] == answer_alone(known, 1)
