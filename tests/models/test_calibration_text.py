"""`penstock quantize --calibration-text`: importances that this engine computes over a text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenized_folders import CORPUS, write_folder
from typer.testing import CliRunner

from penstock.base.errors import ModelError
from penstock.cli.main import app
from penstock.config import SettingsError
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_text_parts
from penstock.quant.importance import CHUNK_SIZE
from penstock.quant.importance_file import read_importance
from penstock.quantizing import calibration
from penstock.text import load_tokenizer

TEXT = "\n".join(CORPUS * 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "in"
    write_folder(path, num_hidden_layers=2, max_position_embeddings=1024)
    return path


def invoke(folder: Path, output: Path, *options: str) -> Any:
    words = ["quantize", str(folder), str(output), "--json", *options]
    return CliRunner().invoke(app, words)


def test_the_importances_of_a_text_are_computed_kept_and_used(folder: Path, tmp_path: Path) -> None:
    text, kept = tmp_path / "sample.txt", tmp_path / "kept.gguf"
    text.write_text(TEXT, encoding="utf-8")
    options = ("--type", "Q4_0", "--calibration-text", str(text), "--calibration-chunks", "2")
    output = tmp_path / "weighted.gguf"
    result = invoke(folder, output, *options, "--save-imatrix", str(kept))
    assert result.exit_code == 0, (result.output, result.exception)
    importance = read_importance(kept)
    assert (importance.datasets, importance.chunk_count) == (("sample.txt",), 2)
    names = {one.name for one in gguf.GGUFReader(output).tensors if one.name.startswith("blk.")}
    matrices = {name for name in names if "norm" not in name}
    assert importance.squares.keys() == matrices and len(matrices) == 14
    assert {int(one.counts[0]) for one in importance.squares.values()} == {2 * CHUNK_SIZE}
    # The file is the one that the kept importances give, and not the one without.
    from_file, plain = tmp_path / "from_file.gguf", tmp_path / "plain.gguf"
    assert invoke(folder, from_file, "--type", "Q4_0", "--imatrix", str(kept)).exit_code == 0
    assert invoke(folder, plain, "--type", "Q4_0").exit_code == 0
    assert from_file.read_bytes() == output.read_bytes() != plain.read_bytes()


def test_the_first_inputs_are_normalized_embeddings(folder: Path, tmp_path: Path) -> None:
    """The importances of the first layer's q follow from the weights and the text alone."""
    text, kept = tmp_path / "sample.txt", tmp_path / "kept.gguf"
    text.write_text(TEXT, encoding="utf-8")
    options = ("--type", "F32", "--calibration-text", str(text), "--calibration-chunks", "1")
    output = tmp_path / "out.gguf"
    assert invoke(folder, output, *options, "--save-imatrix", str(kept)).exit_code == 0
    tensors = {one.name: np.array(one.data) for one in gguf.GGUFReader(output).tensors}
    parts = load_text_parts(files_at(folder, "tiny"))
    tokens = load_tokenizer(parts).encode(TEXT)[:CHUNK_SIZE]
    rows = tensors["token_embd.weight"][tokens].astype(np.float64)
    rows /= np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6)
    expected = ((rows * tensors["blk.0.attn_norm.weight"]) ** 2).mean(0)
    found = read_importance(kept).importance("blk.0.attn_q.weight")
    assert found is not None
    np.testing.assert_allclose(found[0], expected, rtol=0.02)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "sample.txt: No such file"),
        (b"", "sample.txt: the text is empty"),
        (b" \n\t\n", "sample.txt: the text is empty"),
        (b"too short", r"sample.txt: the text has \d+ tokens, a chunk has 512"),
        (b"caf\xe9 " * 2000, "sample.txt: is not UTF-8 at byte 3"),
        (TEXT.encode("utf-16"), "sample.txt: is not UTF-8 at byte 0"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_and_nothing_is_written(
    folder: Path, tmp_path: Path, content: bytes | None, says: str
) -> None:
    text = tmp_path / "sample.txt"
    if content is not None:
        text.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    kept = tmp_path / "kept.gguf"
    options = ("--calibration-text", str(text), "--save-imatrix", str(kept))
    result = invoke(folder, tmp_path / "out.gguf", *options)
    assert isinstance(result.exception, (ModelError, SettingsError)), result.exception
    assert re.search(says, str(result.exception))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--type", "Q9"), "'Q9': must be one of"),
        (("--tensor-type", "nothing=Q8_0"), "matches no matrix"),
        (("--imatrix", "other.gguf"), "exclude each other"),
    ],
)
def test_wrong_options_are_refused_before_the_text_is_computed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    says: str,
) -> None:
    text = tmp_path / "sample.txt"
    text.write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(calibration, "importance_over", lambda *_: pytest.fail("was computed"))
    result = invoke(folder, tmp_path / "out.gguf", "--calibration-text", str(text), *options)
    assert isinstance(result.exception, (ModelError, SettingsError)), result.exception
    assert says in str(result.exception)


def test_importances_are_kept_only_if_they_are_computed(folder: Path, tmp_path: Path) -> None:
    result = invoke(folder, tmp_path / "out.gguf", "--save-imatrix", str(tmp_path / "kept.gguf"))
    assert "needs --calibration-text" in str(result.exception)


def test_a_place_for_the_importances_that_does_not_exist_is_named(
    folder: Path, tmp_path: Path
) -> None:
    text, kept = tmp_path / "sample.txt", tmp_path / "absent" / "kept.gguf"
    text.write_text(TEXT, encoding="utf-8")
    options = ("--calibration-text", str(text), "--save-imatrix", str(kept))
    result = invoke(folder, tmp_path / "out.gguf", *options)
    assert "kept.gguf: the folder does not exist" in str(result.exception)
