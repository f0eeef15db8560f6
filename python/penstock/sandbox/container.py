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
from contextlib import asynccontextmanager

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
        self._closed = False
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
            variables_lost, self._variables_lost = self._variables_lost, False
            files_lost, self._files_lost = self._files_lost, False
            try:
                python = await self._interpreter(sandbox)
                result = await python.run(job)
                files = await self._collect(sandbox, job.outputs)
            except SandboxDied:
                result, files = PythonResult(status="error", exception=DIED), ()
                variables_lost = files_lost = True
                await finish(self.end())
            finally:
                await finish(self._forget_ended_interpreter())
            return msgspec.structs.replace(
                result,
                files=files,
                execution_time_ms=milliseconds_since(started),
                state_lost=result.state_lost or variables_lost,
                files_lost=files_lost,
            )

    async def reset_python(self) -> None:
        """End the interpreter and the processes that it started. The next job starts a new one."""
        async with self._lock:
            self._variables_lost = False
            await finish(self._end_interpreter())

    async def run_shell(self, job: ShellJob) -> ShellResult:
        """Run commands in a new shell; return their result with the files that they made."""
        started = time.monotonic()
        argv = [self._shell_path, "-c", "\n".join(job.commands)]
        async with self._call() as sandbox:
            files_lost, self._files_lost = self._files_lost, False
            environment = shell_environment(sandbox, await self._python_facts())
            try:
                result = await run_shell(sandbox, job, argv, environment, self._outputs)
                files = await self._collect(sandbox, job.outputs)
            except SandboxDied:
                result, files, files_lost = ShellResult(status="error", stderr=DIED), (), True
                await finish(self.end())
            except (OSError, ValueError) as error:  # too long, null bytes, no such shell
                result, files = ShellResult(status="error", stderr=str(error)), ()
            return msgspec.structs.replace(
                result,
                files=files,
                execution_time_ms=milliseconds_since(started),
                files_lost=files_lost,
            )

    async def put_files(self, files: Iterable[InputFile]) -> tuple[str, ...]:
        """Write files into the working directory; return their names there, in order.

        A name that is taken gets a number (`data-2.csv`). The same file is written only once.
        """
        names = []
        async with self._call() as sandbox, self._unavailable_if_it_fails():
            taken = {file.path for file in (await sandbox.list_files()).files}
            for file in files:
                key = file.name, hashlib.sha256(file.data).digest()
                if key not in self._inputs:
                    name = input_name(file.name, taken)
                    await sandbox.write_file(name, file.data)
                    taken.add(name)
                    self._inputs[key] = name
                names.append(self._inputs[key])
            self._files = await sandbox.list_files()
        return tuple(names)

    async def mount_skills(self, skills: Iterable[SkillFolder]) -> None:
        """Write skills below `skills/`, where programs can only read them."""
        async with self._call() as sandbox, self._unavailable_if_it_fails():
            for skill in skills:
                for path, data in skill.files.items():
                    path = f"skills/{skill.directory}/{path}"
                    await sandbox.write_file(path, data, read_only=True)

    async def surface(self, outputs: Iterable[DeclaredFile]) -> tuple[CollectedFile, ...]:
        """Return files of the working directory. A missing one becomes an error entry."""
        async with self._call() as sandbox, self._unavailable_if_it_fails():
            collector = Collector(sandbox, self._files)
            await collector.add_declared(outputs)
            return collector.files()

    async def close(self) -> None:
        """End the container for good; return when its last call has ended."""
        self._closed = True
        await self.end()
        async with self._lock:
            await self.end()  # a call was starting it

    async def end(self) -> None:
        """End all processes at once; the files are lost. A call that runs ends with an error."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        self._generation += 1
        self._variables_lost = self._files_lost = True
        self._files = NO_FILES
        self._inputs.clear()
        python, self._python = self._python, None
        await sandbox.close()
        if python is not None:
            await python.close()
        await self._outputs.close()

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[Sandbox]:
        """Wait for earlier calls; yield the sandbox, a new one if there is none."""
        async with self._lock:
            try:
                yield await self._running_sandbox()
            finally:
                self.last_used = time.monotonic()

    @asynccontextmanager
    async def _unavailable_if_it_fails(self) -> AsyncIterator[None]:
        """Raise Unavailable if the sandbox ends, or if a file cannot be written."""
        try:
            yield
        except SandboxDied:
            await finish(self.end())
            raise Unavailable(DIED) from None
        except (SandboxFileError, ValueError) as error:
            raise Unavailable(f"The container's file system: {error}") from None

    async def _running_sandbox(self) -> Sandbox:
        if self._sandbox is not None and self._sandbox.closed.done():
            await finish(self.end())
        if self._closed:
            raise Unavailable("The container is closed.")
        if self._sandbox is None:
            self._sandbox = await self._launch(self)
            self.working_directory = self._sandbox.working_directory
        return self._sandbox

    async def _interpreter(self, sandbox: Sandbox) -> PythonSession:
        if self._python is None:
            facts = await self._python_facts()
            if facts is None:
                raise Unavailable("Python is not enabled on this server.")
            try:
                self._python = await PythonSession.start(sandbox, facts)
            except OSError as error:
                raise Unavailable(f"The Python interpreter cannot start: {error}") from None
        return self._python

    async def _end_interpreter(self) -> None:
        python, self._python = self._python, None
        if python is not None:
            await python.close()

    async def _forget_ended_interpreter(self) -> None:
        if self._python is not None and self._python.ended:
            self._variables_lost = True
            await self._end_interpreter()

    async def _collect(
        self, sandbox: Sandbox, outputs: tuple[DeclaredFile, ...]
    ) -> tuple[CollectedFile, ...]:
        """Return the declared and the changed files of a job."""
        before, self._files = self._files, await sandbox.list_files()
        collector = Collector(sandbox, self._files)
        await collector.add_declared(outputs)
        await collector.add_changed(changed(before, self._files))
        return collector.files()


def milliseconds_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
