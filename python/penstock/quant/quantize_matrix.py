"""Quantizes float matrices to any type of weights that a CPU supports."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.config.weight_types import INTEGERS, WeightForm
from penstock.kernels.weights import Dense, Matrix
from penstock.quant.dequantize import dequantize
from penstock.quant.encode.encoder import encode
from penstock.quant.encode.fitting_type import fitting_type
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.quantize import GROUP, Bits, quantize_affine
from penstock.quant.rest import Rest, no_rest

_BITS: Final[dict[WeightForm, Bits]] = {"int4": 4, "int8": 8}
_CHUNK_ELEMENTS: Final = 1 << 22
_PIECE_ELEMENTS: Final = 1 << 14  # of a chunk, if a rest follows: a millisecond or two


class MatrixQuantizer:
    """Quantizes matrices on `threads` threads. `rest`: called after each few milliseconds."""

    def __init__(self, threads: int, rest: Rest = no_rest) -> None:
        self._pool = _native.ThreadPool(threads)
        self._chunk_elements = _CHUNK_ELEMENTS if rest is no_rest else _PIECE_ELEMENTS
        self._rest = rest

    def quantized(
        self, matrix: Dense, form: WeightForm, importance: npt.NDArray[np.float32] | None = None
    ) -> Matrix:
        """Quantize `matrix` [N, C], whose columns must be a multiple of GROUP, to the type `form`,
        or to a similar one if C makes no whole blocks. `importance` [C]: how much the squared error
        of each column counts; None: all count the same. Raises ValueError if a number is not
        finite."""
        if form in INTEGERS:
            return quantize_affine(matrix, _BITS[form], importance, self._rest)
        rows, columns = matrix.shape
        kind = TYPES[fitting_type(form, columns)]
        step = max(self._chunk_elements // columns, 1)
        parts = []
        for first in range(0, rows, step):
            part = dequantize(Dense(matrix.data[first : first + step], matrix.dtype))
            parts.append(encode(kind.name, part, importance, pool=self._pool))
            self._rest()
        return kind.convert(np.concatenate(parts).reshape(-1), (rows, columns))


def form_sample(form: WeightForm, columns: int) -> Matrix:
    """Return a small matrix of zeros in the layout of the type, with its bytes per element."""
    if form in INTEGERS:
        return quantize_affine(Dense(np.zeros((1, GROUP), np.float32), "f32"), _BITS[form])
    return TYPES[fitting_type(form, columns)].layout_sample()
