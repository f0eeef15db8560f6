"""The storage forms of a model's matrices, and the elements of each, follow from the header."""

from __future__ import annotations

import math

import pytest
from random_checkpoint import RandomCheckpoint, random_weights
from test_tensor_parallel import LLAMA as SPEC

from penstock.kernels.weights import Affine
from penstock.models.checkpoint.matrix_forms import matrix_forms
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import hf_names


@pytest.mark.parametrize("form", ["f32", "bf16", "q4_0", "q8_0"])
def test_every_matrix_is_counted_once(form: str) -> None:
    forms = random_weights(SPEC, form).forms()
    shapes = [shape for shape in expected_shapes(hf_names(SPEC), SPEC).values() if len(shape) > 1]
    assert sum(one.elements for one in forms) == sum(map(math.prod, shapes))
    assert {one.columns for one in forms} == {shape[-1] for shape in shapes}
    for one in forms:
        assert one.rows == max(shape[-2] for shape in shapes if shape[-1] == one.columns)
        assert isinstance(one.pattern, Affine) == form.startswith("q")


def test_two_storage_types_give_two_forms() -> None:
    shapes = {"a.weight": (64, 32), "experts.weight": (5, 16, 32), "b.bias": (4, 4), "n": (32,)}
    checkpoint = RandomCheckpoint(shapes, "q8_0", {})
    (one,) = matrix_forms(checkpoint, shapes, lambda matrix: matrix)
    assert (one.rows, one.columns, one.elements) == (64, 32, 64 * 32 + 5 * 16 * 32)
    mixed = shapes | {"mlp.gate.weight": (8, 32)}  # float32 in an integer checkpoint
    forms = matrix_forms(RandomCheckpoint(mixed, "q8_0", {}), mixed, lambda matrix: matrix)
    assert sorted(form.elements for form in forms) == [8 * 32, one.elements]
