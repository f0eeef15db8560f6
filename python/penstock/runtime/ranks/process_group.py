"""The processes of a model's ranks, as rank 0 sees them: start, messages, and the end of one.

A rank that dies cannot be replaced: its part of the KV cache is lost, and the other ranks are
blocked in the middle of a step, where no message reaches them. So this process ends too, and its
parent starts a new engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles
from penstock.runtime.ranks.messages import Channel, PackAnswer, RankStatus, RankTask, frame

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 10.0
LOST_STATUS: Final = 70
"""Exit status of this process when it ends because another rank did."""

AFTERMATH_S: Final = 2.0
"""How long after the end of a rank a failure of another rank is still attributed to it."""


def end_process() -> None:
    """Exit at once: threads may be blocked by a dead rank, and cannot be woken."""
    os._exit(LOST_STATUS)


class RankProcess:
    """The process of one rank. `steps` is used in one direction only."""

    def __init__(self, number: int, device: str, task: Callable[[int, int], RankTask]) -> None:
        self.number = number
        self.device = device
        steps, own_steps = socket.socketpair()
        adapters, own_adapters = socket.socketpair()
        self.steps: Channel[Any] = Channel(steps, Any)
        self.adapters: Channel[PackAnswer] = Channel(adapters, PackAnswer)
        inherited = (own_steps.fileno(), own_adapters.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.runtime.ranks.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=inherited,
        )
        own_steps.close()
        own_adapters.close()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; `watch` reports that
            self.process.stdin.write(msgspec.json.encode(task(*inherited)) + b"\n")
            self.process.stdin.flush()

    def watch(self, report: Callable[[int, RankStatus | int], None]) -> None:
        """Report its status lines and finally its exit status."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report(self.number, msgspec.json.decode(line, type=RankStatus))
        report(self.number, self.process.wait())

    def stop(self) -> None:
        """Wait until it has ended, and kill it after a timeout. Its sockets must be closed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # it never read its task
            self.process.stdin.close()


class RankProcessGroup:
    """The processes of all ranks except 0, one per device of `devices` except the first, which
    belongs to this process.

    `on_rank_lost` is called when a rank ends after `serve`. Raises OSError if a process cannot be
    started; the others have been stopped then.
    """

    def __init__(
        self,
        files: ModelFiles,
        settings: EngineSettings,
        devices: tuple[str, ...],
        on_rank_lost: Callable[[], None] = end_process,
    ) -> None:
        self._on_rank_lost = on_rank_lost
        self._events: SimpleQueue[tuple[int, RankStatus | int]] = SimpleQueue()
        self._statuses: dict[tuple[int, str], RankStatus] = {}
        self._folder = tempfile.mkdtemp(prefix="penstock-ranks-")  # mode 0700
        self._serving = threading.Event()
        self._closing = threading.Event()
        self._ending = threading.Lock()
        self.rendezvous = Path(self._folder) / "rendezvous"

        def task(number: int, steps: int, adapters: int) -> RankTask:
            return RankTask(
                settings=settings,
                model_id=files.model_id,
                kind=files.kind,
                path=str(files.path),
                rank=number,
                count=len(devices),
                device=devices[number],
                rendezvous=str(self.rendezvous),
                steps=steps,
                adapters=adapters,
            )

        self.ranks: list[RankProcess] = []
        self._watchers: list[threading.Thread] = []
        try:
            for number, device in enumerate(devices[1:], 1):
                rank = RankProcess(number, device, partial(task, number))
                self.ranks.append(rank)
                name = f"penstock-rank-{number}"
                watcher = threading.Thread(
                    target=rank.watch, args=(self.report,), name=name, daemon=True
                )
                watcher.start()
                self._watchers.append(watcher)
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> range:
        """Numbers of the ranks other than 0."""
        return range(1, len(self.ranks) + 1)

    def report(self, number: int, news: RankStatus | int) -> None:
        """Record a status or an exit status of a rank; this process reports for rank 0. Any
        thread."""
        if not self._serving.is_set():
            self._events.put((number, news))
        elif isinstance(news, int) and not self._closing.is_set():
            self._end(number, news)

    def wait_for(self, event: str, numbers: Iterable[int]) -> list[RankStatus]:
        """Wait until each of the ranks `numbers` has reported `event`. Return these statuses.
        Raises ModelError for the first failure."""
        wanted = [(number, event) for number in numbers]
        while not all(key in self._statuses for key in wanted):
            number, news = self._events.get()
            if isinstance(news, int) or news.event == "failed":
                raise ModelError(self._failure(number, news))
            self._statuses[number, news.event] = news
        return [self._statuses[key] for key in wanted]

    def serve(self) -> None:
        """Start serving: from now on the end of a rank ends this process. Raises ModelError if one
        has ended already."""
        self._serving.set()
        for rank in self.ranks:
            status = rank.process.poll()
            if status is not None:
                raise ModelError(self._failure(rank.number, status))

    def send_all(self, message: msgspec.Struct) -> None:
        """Send a message to all ranks. Must be called by one thread, which determines the order."""
        data = frame(message)
        for rank in self.ranks:
            rank.steps.send_frame(data)

    def end_if_rank_died(self) -> None:
        """After a failure here, end this process if the cause is a rank that has ended."""
        for rank in self.ranks:
            try:
                self._end(rank.number, rank.process.wait(AFTERMATH_S / len(self.ranks)))
            except subprocess.TimeoutExpired:
                continue

    def disconnect(self) -> None:
        """Close the connections, so that the ranks end after the messages already sent."""
        self._closing.set()
        for rank in self.ranks:
            rank.steps.close()
            rank.adapters.close()

    def close(self) -> None:
        """Stop all ranks and remove their files and sockets."""
        self.disconnect()
        if not self._serving.is_set():  # while starting, ranks may wait for each other
            for rank in self.ranks:
                rank.process.kill()
        for rank in self.ranks:
            rank.stop()
        for watcher in self._watchers:
            watcher.join()
        for rank in self.ranks:
            assert rank.process.stdout is not None
            rank.process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _failure(self, number: int, news: RankStatus | int) -> str:
        """Return why the start failed. If rank 0 failed, the failure of another rank may be the
        cause."""
        if number == 0:
            number, news = self._cause() or (number, news)
        device = "" if number == 0 else f" ({self.ranks[number - 1].device})"
        if isinstance(news, int):
            return f"rank {number}{device} ended with status {news} while it started"
        return f"rank {number}{device}: {news.text}"

    def _cause(self) -> tuple[int, RankStatus | int] | None:
        """Wait a moment for the failure of another rank and return it, if there is one."""
        until = time.monotonic() + AFTERMATH_S
        while (left_s := until - time.monotonic()) > 0:
            try:
                number, news = self._events.get(timeout=left_s)
            except Empty:
                break
            if isinstance(news, int) or news.event == "failed":
                return number, news
        return None

    def _end(self, number: int, status: int) -> None:
        """End this process, once. Another thread that gets here waits for the end."""
        with self._ending:
            if self._closing.is_set():
                return
            self._closing.set()
            log.critical(
                "rank %d (%s) ended with status %d, and so does the engine",
                number,
                self.ranks[number - 1].device,
                status,
            )
            shutil.rmtree(self._folder, ignore_errors=True)
            self._on_rank_lost()
