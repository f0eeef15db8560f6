"""The processes of a model's ranks, as rank 0 sees them: how they start, what they are told, and
that it ends when one of them does.

A rank that is gone cannot be replaced: its part of the cache went with it, and the others wait for
it in the middle of a step, where nothing reaches them. So this process ends, and whoever started it
makes everything anew.
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
"""Of this process, when it ends because a rank did."""

AFTERMATH_S: Final = 2.0
"""So long after the end of a rank may the others fail before that is seen."""


def end_process() -> None:
    """At once: threads may wait for a rank that is gone, and nothing can wake them."""
    os._exit(LOST_STATUS)


class RankProcess:
    """One rank. `steps`: nothing comes back on it."""

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
        with contextlib.suppress(BrokenPipeError):  # it has ended, and who follows it tells so
            self.process.stdin.write(msgspec.json.encode(task(*inherited)) + b"\n")
            self.process.stdin.flush()

    def follow(self, hear: Callable[[int, RankStatus | int], None]) -> None:
        """Pass on its status lines, and in the end its exit status."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            hear(self.number, msgspec.json.decode(line, type=RankStatus))
        hear(self.number, self.process.wait())

    def stop(self) -> None:
        """Let it end by itself, for a while. Its sockets are closed already."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # it has never read its task
            self.process.stdin.close()


class RankProcessGroup:
    """Ranks 1 and up of `files`, one on each of `devices` but the first, which is this process's.

    `lost`: what happens when a rank ends that was let serve. Raises OSError where one cannot be
    started; the others have ended then.
    """

    def __init__(
        self,
        files: ModelFiles,
        settings: EngineSettings,
        devices: tuple[str, ...],
        lost: Callable[[], None] = end_process,
    ) -> None:
        self._lost = lost
        self._heard: SimpleQueue[tuple[int, RankStatus | int]] = SimpleQueue()
        self._said: dict[tuple[int, str], RankStatus] = {}
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
        self._followers: list[threading.Thread] = []
        try:
            for number, device in enumerate(devices[1:], 1):
                rank = RankProcess(number, device, partial(task, number))
                self.ranks.append(rank)
                name = f"penstock-rank-{number}"
                follower = threading.Thread(
                    target=rank.follow, args=(self.hear,), name=name, daemon=True
                )
                follower.start()
                self._followers.append(follower)
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> range:
        """Of the ranks that are not this process."""
        return range(1, len(self.ranks) + 1)

    def hear(self, number: int, news: RankStatus | int) -> None:
        """What a rank said, or its exit status; of this process's own rank, what it says itself.
        From any thread."""
        if not self._serving.is_set():
            self._heard.put((number, news))
        elif isinstance(news, int) and not self._closing.is_set():
            self._end(number, news)

    def wait_for(self, event: str, numbers: Iterable[int]) -> list[RankStatus]:
        """What each of these ranks says of `event`, once they all have. Raises ModelError with the
        first that failed."""
        wanted = [(number, event) for number in numbers]
        while not all(key in self._said for key in wanted):
            number, news = self._heard.get()
            if isinstance(news, int) or news.event == "failed":
                raise ModelError(self._failure(number, news))
            self._said[number, news.event] = news
        return [self._said[key] for key in wanted]

    def serve(self) -> None:
        """From now on the end of a rank is the end of this process. Raises ModelError where one
        has ended already."""
        self._serving.set()
        for rank in self.ranks:
            status = rank.process.poll()
            if status is not None:
                raise ModelError(self._failure(rank.number, status))

    def tell(self, message: msgspec.Struct) -> None:
        """All ranks, in the order of the calls; one thread makes them."""
        data = frame(message)
        for rank in self.ranks:
            rank.steps.send_frame(data)

    def end_if_lost(self) -> None:
        """Something failed here: if that is because a rank has ended, it is said so."""
        for rank in self.ranks:
            try:
                self._end(rank.number, rank.process.wait(AFTERMATH_S / len(self.ranks)))
            except subprocess.TimeoutExpired:
                continue

    def hang_up(self) -> None:
        """Let the ranks end after what they were told."""
        self._closing.set()
        for rank in self.ranks:
            rank.steps.close()
            rank.adapters.close()

    def close(self) -> None:
        """Return when all ranks have ended. Their files and sockets are gone."""
        self.hang_up()
        if not self._serving.is_set():  # they may wait for each other
            for rank in self.ranks:
                rank.process.kill()
        for rank in self.ranks:
            rank.stop()
        for follower in self._followers:
            follower.join()
        for rank in self.ranks:
            assert rank.process.stdout is not None
            rank.process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _failure(self, number: int, news: RankStatus | int) -> str:
        """Why there is no start. Where this process's own rank failed, another one may have been
        the cause."""
        if number == 0:
            number, news = self._cause() or (number, news)
        device = "" if number == 0 else f" ({self.ranks[number - 1].device})"
        if isinstance(news, int):
            return f"rank {number}{device} ended with status {news} while it started"
        return f"rank {number}{device}: {news.text}"

    def _cause(self) -> tuple[int, RankStatus | int] | None:
        """The failure of another rank, if there is any."""
        until = time.monotonic() + AFTERMATH_S
        while (left_s := until - time.monotonic()) > 0:
            try:
                number, news = self._heard.get(timeout=left_s)
            except Empty:
                break
            if isinstance(news, int) or news.event == "failed":
                return number, news
        return None

    def _end(self, number: int, status: int) -> None:
        """Once: another thread that comes here meanwhile waits for the end."""
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
            self._lost()
