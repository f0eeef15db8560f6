"""Weights on their way from a file to torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

# Said of any tensor over a mapped file. Nobody writes to weights.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def tensor_of(array: Any) -> torch.Tensor:
    """A numpy array as a tensor of the same memory where that is contiguous. Not to be written."""
    return torch.from_numpy(np.ascontiguousarray(array))
