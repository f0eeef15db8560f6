"""A GPU stream for copies beside the steps, and the waiting between the two.

On "cpu" (tests), work is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class CopyStream:
    """A GPU stream beside the one on which the steps of `device` are launched. Work on it runs in
    order. An event marks the end of the work launched so far."""

    def __init__(self, device: torch.device, steps: Any) -> None:
        self._device = device
        self._steps = steps
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make `device` current for this thread; pinning memory also needs that."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.device(self._device):
                yield

    def run(self, work: Callable[[], None]) -> Any:
        """Launch the work of `work` on this stream. Return an event after it."""
        with self.on_device(), torch.inference_mode(), torch.cuda.stream(self._stream):
            work()
        return None if self._stream is None else self._stream.record_event()

    def is_done(self, event: Any) -> bool:
        """Return whether all work before `event` is done."""
        return event is None or bool(event.query())

    def wait_for_steps(self) -> None:
        """Make work launched here from now on wait for the steps launched so far."""
        if self._stream is not None:
            self._stream.wait_stream(self._steps)

    def make_steps_wait(self, event: Any) -> None:
        """Make steps launched from now on wait for `event`. The CPU does not wait."""
        if event is not None:
            self._steps.wait_event(event)
