"""One container: its sandbox, its Python interpreter, its shells and its files.

    container.run_python(job)      container.reset_python()     container.run_shell(job)
    container.put_files(files)     container.mount_skills(skills)
    container.surface(outputs)

One call runs at a time; further calls wait. The sandbox starts with the first call. If it has ended
(idle for too long, killed, out of room), the next call starts an empty one, `generation` changes,
and the result says so. Methods raise Unavailable if no sandbox can start, and Overloaded if all
containers are busy.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

from penstock.base.errors import Unavailable
from penstock.sandbox.environment import shell_environment
from penstock.sandbox.launcher import FileListing, Sandbox, SandboxDied, SandboxFileError
from penstock.sandbox.output_files import Collector, changed, input_name
from penstock.sandbox.python_facts import PythonFacts
from penstock.sandbox.python_session import PythonSession
from penstock.sandbox.shell import OpenOutputs, run_shell
from penstock.sandbox.types import (
    CollectedFile,
    DeclaredFile,
    InputFile,
    PythonJob,
    PythonResult,
    ShellJob,
    ShellResult,
    SkillFolder,
)
from penstock.sandbox.waiting import finish

NO_FILES = FileListing((), truncated=False)
DIED = "The container ended unexpectedly. Its files and variables are lost."

Result = TypeVar("Result", PythonResult, ShellResult)


class Container:
    """A container of one session.

    - `launch`: starts a sandbox; raises Unavailable or Overloaded.
    - `python_facts`: returns the facts about the Python tool's Python, None if it is off.
    - `lost`: whether an earlier container of this session has ended.
    """

    def __init__(
        self,
        launch: Callable[[Container], Awaitable[Sandbox]],
        python_facts: Callable[[], Awaitable[PythonFacts | None]],
        shell_path: str,
        *,
        lost: bool,
    ) -> None:
        self._launch = launch
        self._python_facts = python_facts
        self._shell_path = shell_path
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._python: PythonSession | None = None
        self._outputs = OpenOutputs()
        self._files = NO_FILES
        self._inputs: dict[tuple[str, bytes], str] = {}
        self._generation = 0
        self._variables_lost = lost
        self._files_lost = lost
        self.working_directory = "/mnt/data"
        self.last_used = time.monotonic()

    @property
    def generation(self) -> int:
        """A number that changes when the container has lost its files."""
        ended = self._sandbox is not None and self._sandbox.closed.done()
        return self._generation + int(ended)

    @property
    def busy(self) -> bool:
        """Whether a call runs."""
        return self._lock.locked()

    @property
    def running(self) -> bool:
        """Whether the container has processes."""
        return self._sandbox is not None and not self._sandbox.closed.done()

    async def run_python(self, job: PythonJob) -> PythonResult:
        """Run code in the container's interpreter; return its result with the files it made."""
        started = time.monotonic()
        async with self._call() as sandbox:
            lost, self._variables_lost = self._variables_lost, False
            try:
                python = await self._interpreter(sandbox)
                result = await python.run(job)
                files = await self._collect(sandbox, job.outputs)
            except SandboxDied:
                await self._drop()
                result, files = PythonResult(status="error", exception=DIED, state_lost=True), ()
            finally:
                await finish(self._drop_ended_interpreter())
            files_lost, self._files_lost = self._files_lost, False
            return msgspec.structs.replace(
                result,
                files=files,
                execution_time_ms=round((time.monotonic() - started) * 1000),
                state_lost=result.state_lost or lost,
                files_lost=files_lost,
            )
