"""Importance matrices and their files, in the form of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.kernels.column_squares import ColumnSquares
from penstock.quant.importance import ImportanceMatrix

DENSE, EXPERTS = "blk.0.attn_q.weight", "blk.1.ffn_down_exps.weight"


def squares(*rows_of_experts: int, columns: int = 32) -> ColumnSquares:
    random = np.random.default_rng(len(rows_of_experts))
    made = ColumnSquares(len(rows_of_experts), columns)
    for expert, rows in enumerate(rows_of_experts):
        made.add(random.standard_normal((rows, columns)).astype(np.float32), expert)
    return made


@pytest.fixture
def matrix() -> ImportanceMatrix:
    return ImportanceMatrix({DENSE: squares(7), EXPERTS: squares(3, 0, 5)}, ("a.txt", "b"), 9, 128)


def test_the_gguf_package_reads_a_written_file(matrix: ImportanceMatrix, tmp_path: Path) -> None:
    matrix.write(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    fields = reader.fields
    assert fields["general.type"].contents() == "imatrix"
    assert fields["imatrix.datasets"].contents() == ["a.txt", "b"]
    assert fields["imatrix.chunk_count"].contents() == 9
    assert fields["imatrix.chunk_size"].contents() == 128
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert set(tensors) == {f"{n}.{p}" for n in (DENSE, EXPERTS) for p in ("in_sum2", "counts")}
    assert np.array_equal(tensors[f"{DENSE}.in_sum2"], matrix.squares[DENSE].sums.astype("f4"))
    assert np.array_equal(tensors[f"{EXPERTS}.counts"], [[3], [0], [5]])


def test_a_file_of_the_gguf_package_is_read(matrix: ImportanceMatrix, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "")
    writer.kv_data[0].clear()
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["wiki.train.raw"])
    writer.add_uint32("imatrix.chunk_count", 4)
    writer.add_uint32("imatrix.chunk_size", 512)
    sums = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor(f"{EXPERTS}.in_sum2", sums)
    writer.add_tensor(f"{EXPERTS}.counts", np.array([[2], [0], [4]], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = ImportanceMatrix.read(tmp_path / "m.gguf")
    assert (read.datasets, read.chunk_count, read.chunk_size) == (("wiki.train.raw",), 4, 512)
    means = read.importance(EXPERTS)
    assert means is not None
    assert np.array_equal(means[0], sums[0] / 2) and np.array_equal(means[2], sums[2] / 4)
    assert (means[1] == 1).all(), "no token chose this expert"
    assert read.importance(DENSE) is None


def test_a_written_file_is_read_again(matrix: ImportanceMatrix, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"an older file")
    matrix.write(tmp_path / "m.gguf")
    read = ImportanceMatrix.read(tmp_path / "m.gguf")
    assert (read.datasets, read.chunk_count, read.chunk_size) == (("a.txt", "b"), 9, 128)
    for name in (DENSE, EXPERTS):
        expected = matrix.importance(name)
        assert expected is not None
        np.testing.assert_allclose(read.importance(name), expected, rtol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"general.type": None}, "general.type"),
        ({f"{DENSE}.counts": None}, "counts: is missing"),
        ({f"{DENSE}.counts": np.ones((2, 1), np.float32)}, "expected 1 counts"),
        ({f"{DENSE}.in_sum2": np.full((1, 32), np.nan, np.float32)}, "finite"),
        ({f"{DENSE}.in_sum2": np.full((1, 32), -1, np.float32)}, "not negative"),
    ],
)
def test_a_broken_file_is_refused_with_the_name_at_fault(
    broken: dict[str, np.ndarray | None], message: str, tmp_path: Path
) -> None:
    tensors = {
        f"{DENSE}.in_sum2": np.ones((1, 32), np.float32),
        f"{DENSE}.counts": np.ones((1, 1), np.float32),
    }
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "")
    writer.kv_data[0].clear()
    if "general.type" not in broken:
        writer.add_type("imatrix")
    for name, values in (tensors | broken).items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=message):
        ImportanceMatrix.read(tmp_path / "m.gguf")


def test_rows_that_are_not_finite_do_not_count() -> None:
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = np.inf
    made = ColumnSquares(1, 4)
    made.add(rows)
    assert made.counts.tolist() == [2] and made.sums.tolist() == [[2, 2, 2, 2]]
