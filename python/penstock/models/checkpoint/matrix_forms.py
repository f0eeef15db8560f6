"""Lists the storage formats and sizes of a checkpoint's matrices without reading their data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.kernels.isa.instruction_sets import MatrixForm, form_name
from penstock.kernels.weights import Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.quant.checkpoint import Checkpoint


def matrix_forms(
    checkpoint: Checkpoint, shapes: Mapping[str, Shape], as_asked: Callable[[Matrix], Matrix]
) -> tuple[MatrixForm, ...]:
    """Return one MatrixForm per combination of storage type and number of columns in `shapes`.

    - `shapes`: tensor name -> [rows, columns] or [experts, rows, columns]. Vectors are skipped.
    - `as_asked`: the conversion that is applied to each matrix when it is read.

    Reads no data.
    """
    patterns: dict[tuple[str, Shape], Matrix] = {}
    forms: dict[tuple[str, str, int], MatrixForm] = {}
    for name, shape in shapes.items():
        if len(shape) == 1 or name.endswith(".bias"):
            continue
        info = checkpoint.tensors[name]
        pattern = patterns.get((info.type_name, info.shape))
        if pattern is None:
            pattern = as_asked(checkpoint.layout_sample(name))
            patterns[info.type_name, info.shape] = pattern
        *_, rows, columns = shape
        alike = info.type_name, form_name(pattern), columns
        form = forms.get(alike, MatrixForm(pattern, 0, columns, 0))
        elements = form.elements + math.prod(shape)
        forms[alike] = replace(form, rows=max(form.rows, rows), elements=elements)
    return tuple(forms.values())
