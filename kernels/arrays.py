"""Conversion of weights from numpy arrays to torch tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

# torch warns of any tensor over a read-only mapped file; weights are never written.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def tensor_of(array: Any) -> torch.Tensor:
    """Return a numpy array as a tensor, in the same memory if the array is contiguous. Do not write
    to it."""
    return torch.from_numpy(np.ascontiguousarray(array))
