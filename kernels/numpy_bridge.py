"""Conversion between the registry's torch tensors and the native `Ops` over numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.kernels.cases.random_inputs import map_leaves, map_tensors


def as_numpy(value: Any) -> Any:
    """Return the same structure with each CPU tensor as a numpy array over the same memory, so that
    an op that writes to an array also changes the tensor."""
    return map_tensors(value, lambda tensor: tensor.numpy())


def as_tensors(value: Any) -> Any:
    """Return the same structure with each numpy array as a tensor over the same memory."""
    return map_leaves(value, np.ndarray, torch.from_numpy)


def as_torch(results: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Return the results of an op as tensors; arrays share memory with the tensors."""
    return tuple(
        torch.from_numpy(np.asarray(result)) if not isinstance(result, torch.Tensor) else result
        for result in results
    )
