"""CUDA graphs of the layers of towers: one set per shape of the rows, captured when the shape
occurs for the second time."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

from penstock.kernels.layer_graphs import Capture, Captured, CapturedT
from penstock.runtime.gpu.cuda_graphs import Capturer

log = logging.getLogger(__name__)

MAX_GRAPH_BYTES: Final = 256 << 20
"""Most memory of captured layers, without the intermediate results, which they share."""
MAX_SHAPES: Final = 1024
"""Most shapes that are remembered."""


class TowerGraphs:
    """`LayerGraphs` over a capturer. Shapes that were used least recently are dropped if all
    together exceed `max_bytes`."""

    def __init__(self, capturer: Capturer, max_bytes: int = MAX_GRAPH_BYTES) -> None:
        self._capturer = capturer
        self._max_bytes = max_bytes
        self._worth: OrderedDict[Hashable, bool] = OrderedDict()  # whether a capture may succeed
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def recall(self, key: Hashable, make: Callable[[Capture], CapturedT]) -> CapturedT | None:
        """Return the captured layers of a shape; see `LayerGraphs.recall`."""
        if key in self._made:
            self._made.move_to_end(key)
            found: CapturedT = self._made[key]
            return found
        if key not in self._worth:
            self._note(key, worth=True)
            return None
        if not self._worth[key]:
            return None
        try:
            made = make(self._capturer.capture)
        except RuntimeError as error:  # torch's errors of a capture
            log.warning("the layers of a tower are launched kernel by kernel: %s", error)
            self._note(key, worth=False)
            return None
        if made.size_bytes > self._max_bytes:
            self._note(key, worth=False)
            return None
        self._keep(key, made)
        return made

    def _note(self, key: Hashable, *, worth: bool) -> None:
        self._worth[key] = worth
        if len(self._worth) > MAX_SHAPES:
            self._worth.popitem(last=False)

    def _keep(self, key: Hashable, made: Captured) -> None:
        self._made[key] = made
        while sum(one.size_bytes for one in self._made.values()) > self._max_bytes:
            self._made.popitem(last=False)
