"""Copies that go on beside the steps of a device: a stream of their own, and who waits for whom.

On "cpu", for rehearsals, what is launched is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class CopyStream:
    """Beside the steps of `device`, which are launched on the stream `steps`. What is launched here
    is done in its order. A mark stands for all that was launched up to it."""

    def __init__(self, device: torch.device, steps: Any) -> None:
        self._device = device
        self._steps = steps
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """What a thread does within, it does for this device; pinning memory is for one, too."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.device(self._device):
                yield

    def run(self, work: Callable[[], None]) -> Any:
        """Launch what `work` launches. Returns the mark after it."""
        with self.on_device(), torch.inference_mode(), torch.cuda.stream(self._stream):
            work()
        return None if self._stream is None else self._stream.record_event()

    def is_past(self, mark: Any) -> bool:
        """Whether all that `mark` stands for is done."""
        return mark is None or bool(mark.query())

    def follow_steps(self) -> None:
        """What is launched here from now on waits for the steps that were launched so far."""
        if self._stream is not None:
            self._stream.wait_stream(self._steps)

    def let_steps_wait(self, mark: Any) -> None:
        """Steps that are launched from now on wait for `mark`; the host does not."""
        if mark is not None:
            self._steps.wait_event(mark)
