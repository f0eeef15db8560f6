"""Conversion of weights from numpy arrays to torch tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

# torch warns if a tensor shares the memory of a read-only mapped file. Weights are never written.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def tensor_of(array: Any) -> torch.Tensor:
    """Return a numpy array as a torch tensor, which shares the memory of a contiguous array. Do not
    write to the tensor."""
    return torch.from_numpy(np.ascontiguousarray(array))
