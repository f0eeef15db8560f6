"""An emulation of CUDA graphs on the CPU: a capture records torch's operations with their tensors,
and a replay repeats them on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Recorder(TorchDispatchMode):
    """Runs operations and notes them: (function, arguments, options, result)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        self.calls.append((function, arguments, options or {}, result))
        return result


class EmulatedCapturer:
    """A `Capturer` whose replays see the memory, and nothing else that has changed since the
    capture. `captured`, `replayed`: the number of captures and of replays."""

    WARM_UPS = 2

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def capture(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        for _ in range(self.WARM_UPS):
            compute()
        with _Recorder() as recorder:
            results = compute()
        self.captured += 1

        def replay() -> Any:
            self.replayed += 1
            for function, arguments, options, result in recorder.calls:
                _repeat(function, arguments, options, result)
            return results

        return replay


def _repeat(function: Any, arguments: Any, options: Any, result: Any) -> None:
    """Run an operation again, and write its result to the memory of the first result."""
    new = function(*arguments, **options)
    given = {_memory(leaf) for leaf in tree_leaves((arguments, options)) if _is_tensor(leaf)}
    for old, fresh in zip(tree_leaves(result), tree_leaves(new), strict=True):
        if _is_tensor(old) and _memory(old) not in given:  # neither a view nor changed in place
            old.copy_(fresh)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
