"""The least work of ops that compute each element of a row from elements at the same place."""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.registry import Cost, Inputs


def elementwise_cost(tensors: int, operations: int) -> Callable[[Inputs], Cost]:
    """Return the cost function of an op that reads and writes `tensors` float32 tensors of the size
    of its first input, with `operations` per element."""

    def cost(inputs: Inputs) -> Cost:
        elements = next(iter(inputs.values())).numel()
        return Cost(4 * tensors * elements, operations * elements)

    return cost
