"""The inputs of a step say which tokens are prompt tokens, also of a request that resumes."""

from __future__ import annotations

import numpy as np

from penstock.dialog import Sampling
from penstock.runtime.prompt_rows import PromptTable
from penstock.runtime.row_table import RowTable
from penstock.scheduler.types import Admit, AppendBlocks, Chunk, StepPlan

ROWS, CONTEXT, BLOCK = 3, 64, 16


def table(prompts: PromptTable | None) -> RowTable:
    """Return rows with a prompt of 5 tokens, one of 3 with 4 generated tokens after it, as a
    preempted request has, and one of 1."""
    rows = RowTable(ROWS, CONTEXT, BLOCK, prompts=prompts)
    known = ((0, 5, 5), (1, 7, 3), (2, 1, 1))
    admissions = tuple(
        Admit(row, tuple(range(count)), prompt, Sampling(), 0, None) for row, count, prompt in known
    )
    blocks = tuple(AppendBlocks(row, (row,)) for row in range(ROWS))
    rows.apply(StepPlan(1, (), admissions, blocks, ()))
    return rows


def test_a_resumed_request_keeps_its_generated_tokens() -> None:
    rows = table(PromptTable(ROWS))
    inputs = rows.inputs((Chunk(0, 0, 4, False), Chunk(1, 1, 6, True), Chunk(2, 0, 1, True)))
    assert inputs.is_prompt is not None and inputs.sampled_is_prompt is not None
    assert inputs.is_prompt.tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1]
    assert inputs.sampled_is_prompt.tolist() == [0, 1]
    assert inputs.is_prompt.dtype == inputs.sampled_is_prompt.dtype == np.int32


def test_drafts_are_generated_tokens() -> None:
    rows = table(PromptTable(ROWS))
    inputs = rows.inputs((Chunk(0, 4, 1, True, draft_tokens=(8, 9)),))
    assert inputs.is_prompt is not None and inputs.sampled_is_prompt is not None
    assert inputs.is_prompt.tolist() == [1, 0, 0]
    assert inputs.sampled_is_prompt.tolist() == [1, 0, 0]


def test_the_last_token_of_a_prompt_alone_is_one_in_a_pure_decode_step() -> None:
    rows = table(PromptTable(ROWS))
    inputs = rows.inputs((Chunk(2, 0, 1, True), Chunk(1, 6, 1, True)))
    assert inputs.is_prompt is not None
    assert inputs.is_prompt.tolist() == [1, 0]


def test_a_row_gets_the_prompt_of_its_next_request() -> None:
    rows = table(PromptTable(ROWS))
    admit = Admit(1, tuple(range(6)), 6, Sampling(), 0, None)
    rows.apply(StepPlan(2, (1,), (admit,), (AppendBlocks(1, (1,)),), ()))
    inputs = rows.inputs((Chunk(1, 0, 6, True),))
    assert inputs.is_prompt is not None and inputs.is_prompt.all()


def test_rows_of_a_backend_that_computes_all_tokens_alike_say_nothing() -> None:
    inputs = table(None).inputs((Chunk(0, 0, 5, True),))
    assert inputs.is_prompt is None and inputs.sampled_is_prompt is None
