"""A GPU stream for copies that run in parallel with the steps, and the synchronization between
copies and steps.

On the device "cpu" (tests), all work is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class CopyStream:
    """A GPU stream for copies. `steps`: the stream on which the steps of `device` are launched.
    Work on the copy stream runs in order. An event marks the end of the work launched so far."""

    def __init__(self, device: torch.device, steps: Any) -> None:
        self._device = device
        self._steps = steps
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make `device` the current device of this thread, which pinning memory also needs."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.device(self._device):
                yield

    def run(self, work: Callable[[], None]) -> Any:
        """Call `work`, whose operations are launched on the copy stream. Return an event that marks
        their end."""
        with self.on_device(), torch.inference_mode(), torch.cuda.stream(self._stream):
            work()
        return None if self._stream is None else self._stream.record_event()

    def is_done(self, event: Any) -> bool:
        """Return whether all work before `event` has finished."""
        return event is None or bool(event.query())

    def wait_for_steps(self) -> None:
        """Make work that is launched on the copy stream from now on wait for the steps launched so
        far."""
        if self._stream is not None:
            self._stream.wait_stream(self._steps)

    def make_steps_wait(self, event: Any) -> None:
        """Make steps that are launched from now on wait for `event`. The CPU does not wait."""
        if event is not None:
            self._steps.wait_event(event)
