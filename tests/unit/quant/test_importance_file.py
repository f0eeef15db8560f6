"""Both formats of importance matrices are read alike, and damaged files are refused by name."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.base.errors import ModelError
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.importance_file import importance_rows, read_importance
from tests.support.importance_files import legacy_bytes, squares_of, write_both

DENSE, EXPERTS = "blk.0.attn_q.weight", "blk.1.ffn_down_exps.weight"
TRAILER = struct.calcsize("<ii") + len("text")


@pytest.fixture(scope="module")
def matrix() -> ImportanceMatrix:
    random = np.random.default_rng(0)
    means = {DENSE: (1, 8), EXPERTS: (3, 4)}
    return ImportanceMatrix(
        {
            name: squares_of(np.exp(random.standard_normal(shape)).astype(np.float32))
            for name, shape in means.items()
        }
    )


@pytest.mark.parametrize("form", ["gguf", "legacy"])
def test_a_tensor_has_the_same_importances_in_both_formats(
    matrix: ImportanceMatrix, form: str, tmp_path: Path
) -> None:
    read = read_importance(write_both(matrix, tmp_path)[form])
    assert set(read.squares) == {DENSE, EXPERTS}
    for name, experts, columns in ((DENSE, 1, 8), (EXPERTS, 3, 4)):
        rows = importance_rows(read, name, experts, columns)
        assert rows is not None
        assert np.array_equal(rows, matrix.squares[name].means())
    assert importance_rows(read, "blk.9.attn_q.weight", 1, 8) is None


@pytest.mark.parametrize("form", ["gguf", "legacy"])
@pytest.mark.parametrize(("name", "experts", "columns"), [(DENSE, 1, 16), (EXPERTS, 2, 4)])
def test_a_tensor_of_another_size_is_refused(
    matrix: ImportanceMatrix, form: str, name: str, experts: int, columns: int, tmp_path: Path
) -> None:
    read = read_importance(write_both(matrix, tmp_path)[form])
    with pytest.raises(ModelError, match=f"{name}: .* of another model"):
        importance_rows(read, name, experts, columns)


def test_rows_of_experts_are_not_taken_for_other_rows(matrix: ImportanceMatrix) -> None:
    with pytest.raises(ModelError, match="of another model"):
        importance_rows(matrix, EXPERTS, 4, 3)


@pytest.mark.parametrize("form", ["gguf", "legacy"])
def test_truncations_are_refused_with_the_name_of_the_file(
    matrix: ImportanceMatrix, form: str, tmp_path: Path
) -> None:
    whole = write_both(matrix, tmp_path)[form].read_bytes()
    # The text after the entries is not read; the last 20 bytes of the GGUF file pad its counts.
    end = len(whole) - (TRAILER if form == "legacy" else 20)
    cut = tmp_path / "cut.imatrix"
    for size in range(0, end, 1 if form == "legacy" else 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.imatrix"):
            read_importance(cut)
    cut.write_bytes(legacy_bytes(matrix)[:-TRAILER])
    assert set(read_importance(cut).squares) == {DENSE, EXPERTS}


def entry(name: bytes, calls: int, values: int, sums: list[float]) -> bytes:
    floats = np.array(sums, "<f4").tobytes()
    return struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, values) + floats


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a text, not a matrix", "the number of entries is"),
        (struct.pack("<i", 0), "has no entries"),
        (struct.pack("<i", -1), "the number of entries is -1"),
        (struct.pack("<ii", 1, 2**31 - 1), "the length of its name is 2147483647"),
        (struct.pack("<ii", 1, -4), "the length of its name is -4"),
        (struct.pack("<i", 1) + entry(b"a", -1, 1, [1.0]), "a: the number of calls is -1"),
        (struct.pack("<i", 1) + entry(b"a", 1, -1, [1.0]), "a: the number of values is -1"),
        (struct.pack("<i", 1) + entry(b"a", 1, 2**31 - 1, [1.0]), "a: the file ends"),
        (struct.pack("<i", 2) + entry(b"a", 1, 1, [1.0]), "entry 1: .* the file ends"),
        (struct.pack("<i", 1) + entry(b"a", 1, 1, [np.nan]), "a: .* finite"),
        (struct.pack("<i", 1) + entry(b"a", 1, 1, [-1.0]), "a: .* not negative"),
        (struct.pack("<i", 1) + entry(b"a", 1, 1, [3e38]), "a: a mean square is 3e"),
    ],
)
def test_a_hostile_file_is_refused_with_the_entry_at_fault(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.imatrix"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as refused:
        read_importance(path)
    assert str(path) in str(refused.value)


def test_sums_of_no_calls_are_the_means(tmp_path: Path) -> None:
    path = tmp_path / "m.imatrix"
    path.write_bytes(struct.pack("<i", 1) + entry(b"a", 0, 2, [1.0, 3.0]))
    rows = importance_rows(read_importance(path), "a", 1, 2)
    assert rows is not None and rows.tolist() == [[1.0, 3.0]]


def test_counts_beyond_all_measure_are_refused(tmp_path: Path) -> None:
    made = squares_of(np.ones((1, 4), np.float32))
    made.counts[:] = 1 << 62
    ImportanceMatrix({DENSE: made}).write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=f"{DENSE}: .* inputs"):
        read_importance(tmp_path / "m.gguf")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        read_importance(tmp_path / "absent")
    with pytest.raises(ModelError, match="cannot be read"):
        read_importance(tmp_path)


@pytest.fixture(scope="module")
def contents(
    matrix: ImportanceMatrix, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    paths = write_both(matrix, tmp_path_factory.mktemp("files"))
    return {form: path.read_bytes() for form, path in paths.items()}


@pytest.mark.parametrize("form", ["gguf", "legacy"])
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_changed_bytes_are_read_or_refused(
    contents: dict[str, bytes], form: str, changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    path, content = tmp_path / "changed.imatrix", bytearray(contents[form])
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content)
    with contextlib.suppress(ModelError):
        read = read_importance(path)
        assert all(np.isfinite(one.means()).all() for one in read.squares.values())
