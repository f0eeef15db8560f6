"""A checkpoint in memory, with random weights of any kind for any spec."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.weights import Dense, Matrix
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.families.registry import hf_names
from penstock.quant.checkpoint import TensorInfo

FLOATS = {"f32": 4, "f16": 2, "bf16": 2}
FLOAT8 = {"f8_row": (1, 0), "f8_all": (0, 0), "f8_tile": (128, 128), "f8_group": (1, 128)}

ENDS = ("model.embed_tokens.weight", "lm_head.weight", "token_embd.weight", "output.weight")
PLAIN = ("mlp.gate.weight", "mlp.router.weight", "ffn_gate_inp.weight", ".bias")


def random_matrix(source: RandomInputs, rows: int, columns: int, form: str) -> Matrix:
    """Return a random matrix. `form`: a form of `RandomInputs.dense` or `RandomInputs.affine`, or a
    key of FLOAT8."""
    if form in FLOATS:
        return source.dense(rows, columns, form)
    if form in FLOAT8:
        height, width = FLOAT8[form]
        return source.float8(rows, columns, (height or rows, width or columns))
    return source.affine(rows, columns, form)


class RandomCheckpoint:
    """A `Checkpoint` whose matrices have `form`. Routers and biases are float32; beside 8-bit
    floats, so are embedding and head. Equal names and shapes give equal values. `changed`: tensors
    with other values."""

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], form: str, changed: dict[str, Matrix]
    ) -> None:
        self.path = Path("drawn")
        self.tensors = {
            name: TensorInfo(name, shape, "F32", 0, 4 * math.prod(shape))
            for name, shape in shapes.items()
        }
        self._form = form
        self._changed = changed

    def matrix(self, name: str) -> Matrix:
        if name in self._changed:
            return self._changed[name]
        rows, columns = self.tensors[name].shape
        plain = name.endswith(PLAIN) or (name in ENDS and self._form in FLOAT8)
        return random_matrix(self._source(name), rows, columns, "f32" if plain else self._form)

    def stack(self, name: str) -> tuple[Matrix, ...]:
        count, rows, columns = self.tensors[name].shape
        source = self._source(name)
        return tuple(random_matrix(source, rows, columns, self._form) for _ in range(count))

    def layout_sample(self, name: str) -> Matrix:
        return self.matrix(name) if len(self.tensors[name].shape) == 2 else self.stack(name)[0]

    def vector(self, name: str) -> np.ndarray:
        (size,) = self.tensors[name].shape
        around = 1.0 if name.endswith("norm.weight") else 0.0
        return around + 0.3 * self._source(name).normal(size).numpy()

    def flattened(self, name: str) -> Dense:
        rows, *rest = self.tensors[name].shape
        values = self._source(name).normal(rows, math.prod(rest)).numpy()
        return Dense(values, "f32")

    def _source(self, name: str) -> RandomInputs:
        return RandomInputs(zlib.crc32(name.encode()))


def random_weights(
    spec: DecoderSpec,
    form: str = "f32",
    *,
    names: TensorNames | None = None,
    permuted_qk: bool = False,
    changed: dict[str, Matrix] | None = None,
) -> DecoderWeights:
    """Return random weights under `names`, or under those of a Hugging Face folder."""
    names = names or hf_names(spec)
    checkpoint = RandomCheckpoint(expected_shapes(names, spec), form, changed or {})
    return DecoderWeights(checkpoint, names, spec, "auto", permuted_qk)


def dense(values: np.ndarray) -> Dense:
    return Dense(np.ascontiguousarray(values, dtype=np.float32), "f32")
