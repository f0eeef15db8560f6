"""Manages the processes of a model's ranks for rank 0: starts them, sends messages, and reacts if
one ends.

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
"""Exit status of this process if it ends because another rank has ended."""

AFTERMATH_S: Final = 2.0
"""Seconds after the end of a rank during which a failure of another rank is attributed to it."""


def end_process() -> None:
    """Exit at once, because threads may be blocked by a dead rank and cannot be woken."""
    os._exit(LOST_STATUS)


class RankProcess:
    """The process of one rank, with its channels.

    `number`, `device`: number and device of the rank.
    `task`: returns the rank's task for the file descriptors of its two sockets.
    `steps`: the channel for messages in the order of the steps, used only to send.
    """

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
        with contextlib.suppress(BrokenPipeError):  # the process has ended; `watch` reports that
            self.process.stdin.write(msgspec.json.encode(task(*inherited)) + b"\n")
            self.process.stdin.flush()

    def watch(self, report: Callable[[int, RankStatus | int], None]) -> None:
        """Read the status lines of the process until it ends. Pass each line, and finally the exit
        status, to `report`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report(self.number, msgspec.json.decode(line, type=RankStatus))
        report(self.number, self.process.wait())

    def stop(self) -> None:
        """Wait until the process has ended, and kill it after a timeout. Its channels must be
        closed already."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # the process never read its task
            self.process.stdin.close()


class RankProcessGroup:
    """The processes of all ranks except rank 0, which is this process.

    `devices`: one per rank, starting with rank 0.
    `on_rank_lost`: called if a rank ends after `serve`.

    Raises OSError if a process cannot be started, after stopping those already started.
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
                mmproj=None if files.mmproj is None else str(files.mmproj),
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
        """Numbers of all ranks except 0."""
        return range(1, len(self.ranks) + 1)

    def report(self, number: int, news: RankStatus | int) -> None:
        """Record a status or an exit status of a rank. This process calls it for rank 0. Any thread
        may call it."""
        if not self._serving.is_set():
            self._events.put((number, news))
        elif isinstance(news, int) and not self._closing.is_set():
            self._end(number, news)

    def wait_for(self, event: str, numbers: Iterable[int]) -> list[RankStatus]:
        """Wait until each of the ranks `numbers` has reported `event`, and return the reported
        statuses. Raises ModelError for the first rank that fails."""
        wanted = [(number, event) for number in numbers]
        while not all(key in self._statuses for key in wanted):
            number, news = self._events.get()
            if isinstance(news, int) or news.event == "failed":
                raise ModelError(self._failure(number, news))
            self._statuses[number, news.event] = news
        return [self._statuses[key] for key in wanted]

    def serve(self) -> None:
        """Start to serve: from now on, the end of any rank ends this process. Raises ModelError if
        a rank has ended already."""
        self._serving.set()
        for rank in self.ranks:
            status = rank.process.poll()
            if status is not None:
                raise ModelError(self._failure(rank.number, status))

    def send_all(self, message: msgspec.Struct) -> None:
        """Send a message to all other ranks. Only one thread may call this, because it determines
        the order of the messages."""
        data = frame(message)
        for rank in self.ranks:
            rank.steps.send_frame(data)

    def end_if_rank_died(self) -> None:
        """End this process if a rank has ended. Called after an error here, which the end of the
        rank may have caused."""
        for rank in self.ranks:
            try:
                self._end(rank.number, rank.process.wait(AFTERMATH_S / len(self.ranks)))
            except subprocess.TimeoutExpired:
                continue

    def disconnect(self) -> None:
        """Close the channels, so that the ranks end after the messages already sent."""
        self._closing.set()
        for rank in self.ranks:
            rank.steps.close()
            rank.adapters.close()

    def close(self) -> None:
        """Stop all ranks, and remove their files and sockets."""
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
        """Return the reason of a failed start. If rank 0 failed, the failure of another rank may be
        the cause and is returned instead."""
        if number == 0:
            number, news = self._cause() or (number, news)
        device = "" if number == 0 else f" ({self.ranks[number - 1].device})"
        if isinstance(news, int):
            return f"rank {number}{device} ended with status {news} while it started"
        return f"rank {number}{device}: {news.text}"

    def _cause(self) -> tuple[int, RankStatus | int] | None:
        """Wait up to `AFTERMATH_S` for the failure of another rank. Return its number and its
        status, or None."""
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
        """End this process because rank `number` has ended. A second thread that calls this waits
        for the end."""
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


@contextmanager
def checking_ranks(processes: RankProcessGroup) -> Iterator[None]:
    """If an error occurs in the `with` block, end this process if another rank has ended, because
    that is then the cause."""
    try:
        yield
    except (OSError, RuntimeError):
        processes.end_if_rank_died()
        raise
