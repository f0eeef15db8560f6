"""The pace of a background job, which works between the steps of a busy engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Event
from typing import Final

SHARE: Final = 0.1
"""The time that a job gets, as a share of the time of the steps."""
LONGEST_TURN_S: Final = 0.01
"""The most time that a job gets between two steps."""
LONGEST_PIECE_S: Final = 0.005
"""The longest piece of work for which the engine waits. A longer one goes on beside the step."""
LONGEST_REST_S: Final = 0.1
"""The longest time that a job waits for a turn, for engines whose steps are long."""
POLL_S: Final = 0.01


class JobPace:
    """Divides the time between the steps of the engine and a job in another thread.

    While the engine is busy, the job works in turns between two steps: beside a step, it would take
    a core from one of the threads for which all others wait. While the engine is idle, the job
    works all the time.

    - `busy`: whether the engine has steps to compute. Called by the job's thread.
    - `cancelled`: ends a rest.
    """

    def __init__(
        self,
        busy: Callable[[], bool],
        cancelled: Event,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._busy = busy
        self._cancelled = cancelled
        self._clock = clock
        self._changed = Condition()
        self._waits = False
        self._left_s = 0.0  # of the time that the job has earned
        self._stepped_s = clock()

    def rest(self) -> None:
        """Wait for a turn while the engine is busy. The job calls this after each piece of work,
        which takes a few milliseconds."""
        with self._changed:
            self._waits = True
            self._changed.notify_all()
            end_s = self._clock() + LONGEST_REST_S
            while self._waits and self._clock() < end_s:
                if self._cancelled.is_set() or not self._busy():
                    break
                self._changed.wait(POLL_S)
            self._waits = False

    def between_steps(self) -> None:
        """Give the job its share of the time since the last call. The engine calls this between two
        steps."""
        earned_s = min(SHARE * (self._clock() - self._stepped_s), LONGEST_TURN_S)
        self._left_s = min(self._left_s + earned_s, LONGEST_TURN_S)
        with self._changed:
            while self._waits and self._left_s > 0:
                began_s = self._clock()
                self._waits = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waits, LONGEST_PIECE_S)
                self._left_s -= self._clock() - began_s
        self._stepped_s = self._clock()
