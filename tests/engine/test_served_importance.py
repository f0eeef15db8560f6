"""`imatrix` in the settings of an engine: both formats of `llama-imatrix` give the same weights,
and files of other models or damaged ones are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import start
from scheduled_requests import generate, requests_over, scheduler_of

from penstock.base.errors import ModelError
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.sources import files_at
from penstock.models.loader.importance_names import matrix_pairs
from penstock.models.loader.model_loader import load_model
from penstock.quant.importance import ImportanceMatrix
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama
from tests.support.checkpoints.small_moe import write_small_experts
from tests.support.importance_files import squares_of, write_both

MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": write_small_llama,
    "mixture": write_small_experts,
}


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp("models") / "m")


def random_matrix(folder: Path) -> ImportanceMatrix:
    """Return an importance matrix for all matrices of a model, with very different columns."""
    weights = load_model(files_at(folder, "m"), "auto").weights
    assert isinstance(weights, DecoderWeights)
    shapes = expected_shapes(weights.names, weights.spec)
    random = np.random.default_rng(3)
    squares = {}
    for own, other in matrix_pairs(weights.names, weights.spec):
        of_experts = [name for name in shapes if "{}" in own and _is_expert(name, own)]
        shape = len(of_experts) or 1, shapes[own.format(0)][-1]
        squares[other] = squares_of(np.exp(3 * random.standard_normal(shape)).astype(np.float32))
    return ImportanceMatrix(squares)


def _is_expert(name: str, pattern: str) -> bool:
    before, after = pattern.split("{}")
    return name.startswith(before) and name.endswith(after)


def answers(folder: Path, **options: Any) -> Any:
    runtime = start(folder, lora=None, quantization="int4", **options)
    found = generate(runtime, scheduler_of(runtime), requests_over(VOCAB, 40)[2:5]).answers
    runtime.close()
    return found


def test_both_formats_give_the_same_weights(folder: Path, tmp_path: Path) -> None:
    paths = write_both(random_matrix(folder), tmp_path)
    by_gguf = answers(folder, imatrix=str(paths["gguf"]))
    assert answers(folder, imatrix=str(paths["legacy"])) == by_gguf
    assert answers(folder) != by_gguf


def refusal(folder: Path, path: Path) -> str:
    with pytest.raises(ModelError) as refused:
        start(folder, lora=None, quantization="int4", imatrix=str(path))
    return str(refused.value)


@pytest.mark.parametrize("form", ["gguf", "legacy"])
def test_a_truncated_file_is_refused_by_name(folder: Path, form: str, tmp_path: Path) -> None:
    path = write_both(random_matrix(folder), tmp_path)[form]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert str(path) in refusal(folder, path)


@pytest.mark.parametrize("form", ["gguf", "legacy"])
def test_a_matrix_of_another_model_is_refused(folder: Path, form: str, tmp_path: Path) -> None:
    own = random_matrix(folder)
    name = next(iter(own.squares))
    wide = squares_of(np.ones((1, 128), np.float32))
    path = write_both(ImportanceMatrix({**own.squares, name: wide}), tmp_path)[form]
    assert f"{name}: 128 values, but the tensor has" in refusal(folder, path)
    path = write_both(ImportanceMatrix({f"other.{name}": wide}), tmp_path)[form]
    assert f"none of its names is a matrix of this model; the first is other.{name}" in (
        refusal(folder, path)
    )


def test_a_file_that_is_no_matrix_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no matrix")
    assert "notes.txt: the number of entries is" in refusal(folder, path)
    assert "absent.dat: cannot be read" in refusal(folder, tmp_path / "absent.dat")
