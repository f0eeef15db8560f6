"""The media of rows: which tokens of a step take which encoded rows, at which positions."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.dialog import Sampling
from penstock.kernels.step_inputs import StepInputs
from penstock.models.towers.tower import EncodedMedia
from penstock.runtime.media_rows import MediaTable
from penstock.runtime.row_table import RowTable
from penstock.scheduler import Admit, AppendBlocks, Chunk, MediaRun, StepPlan

WIDTH, ROWS, CONTEXT, BLOCK = 3, 4, 64, 4
A = np.arange(1, 37, dtype=np.float32).reshape(12, WIDTH)
B = -A[:5]


def table(**deep: tuple[np.ndarray, ...]) -> RowTable:
    encoded = {
        name.encode(): EncodedMedia(rows, deep.get(name, ())) for name, rows in (("a", A), ("b", B))
    }
    media = MediaTable(encoded, ROWS, CONTEXT, WIDTH)
    return RowTable(ROWS, CONTEXT, BLOCK, media)


def admit(
    rows: RowTable, row: int, prompt: int, *media: MediaRun, positions: np.ndarray | None = None
) -> None:
    """Give `row` a prompt of tokens 0 to `prompt` - 1, and its own blocks."""
    admission = Admit(
        row,
        tuple(range(prompt)),
        prompt,
        Sampling(temperature=0.0),
        0,
        None,
        media=media,
        rope_positions=b"" if positions is None else positions.astype(np.int32).tobytes(),
    )
    blocks = tuple(range(row * 16, row * 16 + 16))
    rows.apply(StepPlan(1, (), (admission,), (AppendBlocks(row, blocks),), ()))


def embeddings(inputs: StepInputs[np.ndarray], layer: int = 0) -> dict[int, list[float]]:
    """Return the rows that a step uses, by the index of the token."""
    assert inputs.media is not None
    rows = (inputs.media.rows, *inputs.media.deep)[layer]
    index = inputs.media.index
    return {i: rows[row].tolist() for i, row in enumerate(index.tolist()) if row >= 0}


def expected(first: int, rows: np.ndarray) -> dict[int, list[float]]:
    return {first + i: row.tolist() for i, row in enumerate(rows)}


def test_tokens_take_the_rows_of_their_runs_in_any_chunks() -> None:
    rows = table()
    admit(rows, 0, 20, MediaRun(2, 4, b"a"), MediaRun(8, 8, b"a", row=4))
    admit(rows, 1, 9, MediaRun(1, 5, b"b"))
    whole = rows.inputs((Chunk(0, 0, 20, True), Chunk(1, 0, 9, True)))
    assert embeddings(whole) == {
        **expected(2, A[:4]), **expected(8, A[4:]), **expected(21, B)
    }  # fmt: skip
    parts = rows.inputs((Chunk(1, 4, 5, True), Chunk(0, 4, 6, False)))
    assert embeddings(parts) == {
        **expected(0, B[3:]), **expected(5, A[2:4]), **expected(9, A[4:6])
    }  # fmt: skip
    assert parts.media is not None and parts.media.visible is None
    assert parts.positions.tolist() == [4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9]


def test_a_step_without_media_tokens_has_no_media() -> None:
    rows = table()
    admit(rows, 0, 20, MediaRun(2, 4, b"a"))
    for chunk in (Chunk(0, 0, 2, False), Chunk(0, 6, 14, True), Chunk(0, 20, 1, True)):
        assert rows.inputs((chunk,)).media is None


def test_the_tokens_of_a_whole_run_see_all_of_it() -> None:
    rows = table()
    admit(rows, 0, 12, MediaRun(3, 4, b"a", whole=True), MediaRun(8, 2, b"a", 4, whole=True))
    admit(rows, 1, 3)
    media = rows.inputs((Chunk(1, 0, 3, True), Chunk(0, 1, 11, True))).media
    assert media is not None and media.visible is not None
    assert media.visible.tolist() == [1, 2, 3, 2, 3, 7, 7, 7, 7, 8, 10, 10, 11, 12]


def test_deep_rows_are_zero_for_items_without_them() -> None:
    rows = table(a=(10 * A, 100 * A))
    admit(rows, 0, 4, MediaRun(0, 3, b"a"))
    admit(rows, 1, 4, MediaRun(1, 2, b"b"))
    inputs = rows.inputs((Chunk(0, 0, 4, True), Chunk(1, 0, 4, True)))
    assert embeddings(inputs) == {**expected(0, A[:3]), **expected(5, B[:2])}
    zeros = np.zeros((2, WIDTH))
    assert embeddings(inputs, 1) == {**expected(0, 10 * A[:3]), **expected(5, zeros)}
    assert embeddings(inputs, 2) == {**expected(0, 100 * A[:3]), **expected(5, zeros)}


POSITIONS = np.array([[0, 1, 1, 1, 1, 3, 4, 5], [0, 1, 1, 2, 2, 3, 4, 5], [0, 1, 2, 1, 2, 3, 4, 5]])


def test_positions_of_three_axes_differ_only_in_steps_with_media() -> None:
    rows = table()
    admit(rows, 0, 8, MediaRun(1, 4, b"a"), positions=POSITIONS)
    admit(rows, 1, 8)
    step = rows.inputs((Chunk(1, 2, 2, False), Chunk(0, 0, 8, True)))
    assert step.media is not None
    axes = [axis.tolist() for axis in step.media.rope_positions]
    assert axes == [[2, 3, *axis] for axis in POSITIONS.tolist()]
    assert step.media.rope_rows is not None
    assert step.media.rope_rows.tolist() == list(range(10))
    text = rows.inputs((Chunk(0, 5, 3, True),))
    assert text.media is None and text.positions.tolist() == [3, 4, 5]
    head = rows.inputs((Chunk(0, 0, 1, False),))
    assert head.media is None and head.positions.tolist() == [0]


def test_answer_tokens_continue_from_the_largest_position() -> None:
    rows = table()
    admit(rows, 0, 8, MediaRun(1, 4, b"a"), positions=POSITIONS)
    admit(rows, 1, 8)
    for row in (0, 1):
        rows.extend(row, [9, 9, 9])
    decodes = rows.inputs((Chunk(0, 8, 1, True), Chunk(1, 8, 1, True)))
    assert decodes.media is None
    assert decodes.positions.tolist() == [6, 8]
    assert decodes.context_lens.tolist() == [9, 9]
    assert decodes.tokens.tolist() == [9, 9]
    assert decodes.slots.tolist() == [8, 16 * BLOCK + 8]
    drafts = rows.inputs((Chunk(0, 8, 2, True, (5, 6)),))
    assert drafts.positions.tolist() == [6, 7, 8, 9] and drafts.slots.tolist() == [8, 9, 10, 11]


def test_a_single_media_token_that_samples_is_a_media_step() -> None:
    rows = table()
    admit(rows, 0, 4, MediaRun(1, 3, b"a"))
    assert embeddings(rows.inputs((Chunk(0, 3, 1, True),))) == expected(0, A[2:3])


def test_the_next_sequence_of_a_row_has_no_media() -> None:
    rows = table()
    admit(rows, 0, 8, MediaRun(1, 4, b"a"), positions=POSITIONS)
    rows.apply(StepPlan(2, (0,), (), (), ()))
    admit(rows, 0, 8)
    inputs = rows.inputs((Chunk(0, 0, 8, True),))
    assert inputs.media is None and inputs.positions.tolist() == list(range(8))


def test_a_row_goes_on_with_an_item_that_was_dropped() -> None:
    encoded = {b"a": EncodedMedia(A)}
    rows = RowTable(ROWS, CONTEXT, BLOCK, MediaTable(encoded, ROWS, CONTEXT, WIDTH))
    admit(rows, 0, 8, MediaRun(1, 4, b"a"))
    del encoded[b"a"]
    assert embeddings(rows.inputs((Chunk(0, 0, 8, True),))) == expected(1, A[:4])
    with pytest.raises(KeyError):
        admit(rows, 1, 8, MediaRun(1, 4, b"a"))
