"""Loads ONNX models with onnxruntime, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.runtime.speech.espeak import EXTRA

if TYPE_CHECKING:
    from collections.abc import Mapping


class OnnxModel:
    """A loaded ONNX model with one output of floats. `inputs`: input name -> element type, such as
    "tensor(int64)". Raises ModelError if onnxruntime is not installed or refuses the file."""

    def __init__(self, path: Path, threads: int | None) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelError(f"{EXTRA} ({error})") from None
        # onnxruntime's errors have no common base class but Exception.
        binding = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
        errors = [one for one in binding if isinstance(one, type) and issubclass(one, Exception)]
        self._errors: tuple[type[Exception], ...] = (RuntimeError, *errors)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or available_cores()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except self._errors as error:
            raise ModelError(f"{path}: onnxruntime cannot load it: {error}") from None
        self.inputs: dict[str, str] = {one.name: one.type for one in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Return the first output, as one dimension. Raises RuntimeError if the model fails."""
        try:
            output: npt.NDArray[np.float32] = self._session.run(None, dict(inputs))[0]
        except self._errors as error:
            raise RuntimeError(f"onnxruntime failed: {error}") from error
        return output.astype(np.float32).reshape(-1)
