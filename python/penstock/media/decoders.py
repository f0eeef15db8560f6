"""Decodes and prepares media in a pool of child processes."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Sequence
from typing import Final

from penstock.base.errors import InvalidRequest, Unavailable
from penstock.media.child import (
    PROGRAM,
    ChildEnded,
    ChildKilled,
    DecodingChild,
    StartFault,
    StartKilled,
)
from penstock.media.limits import MediaLimits
from penstock.media.protocol import Answer, Job, WorkerSetup
from penstock.models.hub.model_files import ModelFiles
from penstock.models.media.prepared import MediaKind, PreparedMedia

log = logging.getLogger(__name__)

IDLE_S: Final = 60.0
"""Seconds without an item after which all processes of a pool end."""
ATTEMPTS: Final = 2
"""An item or a start is tried again if something outside has killed the process."""
RETRY_AFTER_S: Final = 5
EXTRA: Final = "pip install 'penstock[media]'"
PACKAGES: Final = {"PIL": "pillow", "av": "av"}


def missing_packages() -> list[str]:
    """Return the names of the packages that decoding needs and that are not installed."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]


class MediaUnavailable(Exception):
    """This machine cannot decode media. `suggestion`: a remedy, or None."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class DecoderKilled(MediaUnavailable):
    """Something outside kills decoding processes while they start; a later start may succeed."""


class MediaDecoders:
    """Decodes media for one model, in up to `limits.processes` child processes.

    They start at the first use, are reused, and end after `idle_s` seconds without an item. All
    methods belong to one event loop.

    - `files`: the model whose processor prepares the media; None: pixels, frames and samples are
      returned as they are.
    - `program`: arguments of the Python interpreter that start a decoding process.
    """

    def __init__(
        self,
        files: ModelFiles | None,
        limits: MediaLimits,
        *,
        program: Sequence[str] = PROGRAM,
        idle_s: float = IDLE_S,
    ) -> None:
        self._setup = WorkerSetup(files, limits)
        self._limits = limits
        self._program = program
        self._idle_s = idle_s
        self._slots = asyncio.Semaphore(limits.processes)
        self._idle: list[DecodingChild] = []
        self._busy: set[DecodingChild] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._closing = asyncio.Lock()

    @property
    def pids(self) -> list[int]:
        """The processes that wait for an item."""
        return [child.pid for child in self._idle]

    async def prepare(self, kind: MediaKind, data: bytes, where: str) -> PreparedMedia:
        """Return an item, decoded and prepared for the model.

        `data`: the encoded item, whose format is found from its bytes. `where`: the field of the
        request, for errors.

        Raises InvalidRequest with a code if the item is
        - "invalid_image", "invalid_audio" or "invalid_video": damaged, empty or of an unknown
          format;
        - "unsupported_media_format": of a format or codec that is not supported;
        - "media_too_large": over a limit;
        - "unsupported_media": of a kind that the model does not take;
        and Unavailable if this machine cannot decode media, or with a `retry_after_s` if decoding
        processes are killed while they start.
        """
        try:
            return await self._prepare(kind, data)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=where, code=error.code) from None

    async def try_start(self) -> None:
        """Start a process and end it. Raises MediaUnavailable with the reason, for the operator, if
        this machine cannot decode media."""
        await (await self._start()).close()

    async def close(self) -> None:
        """End all processes, and wait for that. Items that are being decoded fail."""
        self._closed = True
        self._end_idle()
        for child in self._busy:
            child.kill()
        async with self._closing:
            for _ in range(self._limits.processes):  # until no item uses or starts a process
                await self._slots.acquire()
            for _ in range(self._limits.processes):
                self._slots.release()
        while self._ending:
            await asyncio.wait(self._ending)

    async def _prepare(self, kind: MediaKind, data: bytes) -> PreparedMedia:
        if len(data) > self._limits.max_bytes:
            raise InvalidRequest(
                f"the {kind} has {len(data)} bytes; at most {self._limits.max_bytes} are allowed",
                code="media_too_large",
            )
        if not data:
            raise InvalidRequest(f"the {kind} is empty", code=f"invalid_{kind}")
        job = Job(kind, data)
        async with self._slots:
            for attempt in range(ATTEMPTS):
                try:
                    answer = await self._answer(job)
                    break
                except ChildEnded as error:
                    if isinstance(error, ChildKilled) and attempt < ATTEMPTS - 1:
                        log.warning("a decoding process was killed; trying its item once more")
                        continue
                    log.warning("a decoding process ended: the %s %s", kind, error)
                    message = f"the {kind} {error}"
                    raise InvalidRequest(message, code=f"invalid_{kind}") from None
        if answer.origin:
            log.info("the %s cannot be decoded: %s", kind, answer.origin)
        return answer.result()

    async def _answer(self, job: Job) -> Answer:
        """Raises ChildEnded, Unavailable."""
        child = await self._child()
        self._busy.add(child)
        try:
            answer = await child.answer(job, self._limits.cpu_time_s(job.kind))
        except BaseException:
            self._end(child)
            raise
        finally:
            self._busy.discard(child)
        self._put_back(child)
        return answer

    async def _child(self) -> DecodingChild:
        """Return an idle process, or a new one. Raises Unavailable."""
        if self._closed:
            raise Unavailable("the model is closed")
        if self._timer is not None:
            self._timer.cancel()
        if self._idle:
            return self._idle.pop()
        child = await self._start_for_request()
        if self._closed:
            self._end(child)
            raise Unavailable("the model is closed")
        return child

    async def _start_for_request(self) -> DecodingChild:
        """Raises Unavailable, with a message for the client."""
        try:
            return await self._start()
        except DecoderKilled:
            raise Unavailable(
                "the processes that decode media were killed while they started; try again later",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        except MediaUnavailable as error:
            log.error("a decoding process cannot start: %s", error)
            hint = "" if error.suggestion is None else f": {error.suggestion}"
            raise Unavailable(f"this server cannot decode media{hint}") from None

    async def _start(self) -> DecodingChild:
        """Raises MediaUnavailable, DecoderKilled."""
        if missing := missing_packages():
            raise MediaUnavailable(f"{' and '.join(missing)} not installed", EXTRA)
        for _ in range(ATTEMPTS):
            try:
                return await DecodingChild.start(self._setup, self._program)
            except StartKilled:
                log.warning("a decoding process was killed while it started")
            except StartFault as error:
                raise MediaUnavailable(str(error)) from None
        raise DecoderKilled("they are killed while they start", "is there enough memory?")

    def _put_back(self, child: DecodingChild) -> None:
        if self._closed:
            self._end(child)
            return
        self._idle.append(child)
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_s, self._end_idle)

    def _end_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._idle:
            self._end(self._idle.pop())

    def _end(self, child: DecodingChild) -> None:
        """End a process without waiting for it."""
        task = asyncio.get_running_loop().create_task(child.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
