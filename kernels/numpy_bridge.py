"""Between the registry's torch tensors and an `Ops` over numpy arrays: the native one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.kernels.cases.random_inputs import map_leaves, map_tensors


def as_numpy(value: Any) -> Any:
    """The same structure with every CPU tensor as an array over the same memory, so that what an
    op writes to an argument is seen on both sides."""
    return map_tensors(value, lambda tensor: tensor.numpy())


def as_tensors(value: Any) -> Any:
    """The inverse: every array as a tensor over the same memory."""
    return map_leaves(value, np.ndarray, torch.from_numpy)


def as_torch(results: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """An op's results as tensors over the same memory."""
    return tuple(
        torch.from_numpy(np.asarray(result)) if not isinstance(result, torch.Tensor) else result
        for result in results
    )
