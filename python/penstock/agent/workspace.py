"""The files and the container of one run.

A container may be new although its session is not: after a restart, an idle time-out, a crash, or a
request to another API process. The files of the session are therefore stored, and written into the
container before its first use in a run.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from penstock.agent.protocols import FileStore
from penstock.base.errors import ServiceError
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
from penstock.store.records import StoredFile

log = logging.getLogger(__name__)

CONTAINER_PREFIX: Final = "cntr_"
# Ids with an underscore are hashed, except our own, so that none looks like a hash. So are 32
# hexadecimal digits, the names of the containers of responses.
PLAIN_SESSION_ID: Final = re.compile(r"sess_[0-9a-f]{32}|(?![0-9a-f]{32}$)[A-Za-z0-9-]{1,59}")
MAX_RESTORED_BYTES: Final = 256 * 1024 * 1024
"""Total size of the stored files that are written into a new container, newest first."""


class Container(Protocol):
    """The methods of `sandbox.containers.Container` that the agent uses.

    `generation`: changes when the container is replaced by an empty one.
    """

    @property
    def generation(self) -> int: ...

    @property
    def working_directory(self) -> str: ...

    async def run_python(self, job: PythonJob) -> PythonResult: ...

    async def reset_python(self) -> None: ...

    async def run_shell(self, job: ShellJob) -> ShellResult: ...

    async def put_files(self, files: Iterable[InputFile]) -> tuple[str, ...]: ...

    async def mount_skills(self, skills: Iterable[SkillFolder]) -> None: ...

    async def surface(self, outputs: Iterable[DeclaredFile]) -> tuple[CollectedFile, ...]: ...


class Containers(Protocol):
    """The methods of `sandbox.containers.Containers` that the agent uses."""

    async def container(self, id: str) -> Container: ...

    async def close_container(self, id: str) -> None: ...


class Workspaces:
    """Makes the workspaces of runs. Remembers which stored files a container already has."""

    def __init__(self, containers: Containers | None, files: FileStore) -> None:
        self._containers = containers
        self._files = files
        self._present: WeakKeyDictionary[Container, tuple[int, set[str]]] = WeakKeyDictionary()

    def workspace(
        self,
        session: str,
        container_id: str,
        file_ids: tuple[str, ...] = (),
        skills: tuple[SkillFolder, ...] = (),
    ) -> Workspace:
        """Return the workspace of one run. `file_ids`: uploaded files that the request names."""
        return Workspace(self, session, container_id, file_ids, skills)

    async def prepared(self, workspace: Workspace) -> Container:
        """Return the container of a workspace, with all files of the session in it. Raises the
        errors of the sandbox."""
        assert self._containers is not None, "tools that need a container are off"
        container = await self._containers.container(workspace.container_id)
        if workspace.is_ready(container):
            return container
        generation, present = self._present.get(container, (-1, set()))
        if generation != container.generation:
            workspace.is_new = True
            present = set()
        if workspace.skills:
            await container.mount_skills(workspace.skills)
        files = [file for file in await workspace.files() if file.id not in present]
        inputs = []
        for file in _latest(files):
            data = await self._read(file)
            if data is not None:
                inputs.append(InputFile(file.name, data))
        if inputs:
            await container.put_files(inputs)
        present |= {file.id for file in files}
        self._present[container] = container.generation, present
        return container

    def note_present(self, container: Container, ids: Iterable[str]) -> None:
        """Record files that the container made itself."""
        generation, present = self._present.get(container, (container.generation, set()))
        self._present[container] = generation, present | set(ids)

    async def list(self, session: str, file_ids: tuple[str, ...]) -> list[StoredFile]:
        """Return the files of a session and the named files, oldest first."""
        found = {file.id: file for file in reversed(await self._files.list(session=session))}
        for id in file_ids:
            file = None if id in found else await self._files.get(id)
            if file is not None:
                found[id] = file
        return list(found.values())

    async def read(self, id: str) -> bytes:
        """Return the content of a stored file. Raises ServiceError."""
        return await self._files.read(id)

    async def _read(self, file: StoredFile) -> bytes | None:
        try:
            return await self._files.read(file.id)
        except ServiceError as error:  # expired since it was listed, or not kept
            log.info("the file %s is not in the container: %s", file.id, error.message)
            return None


class Workspace:
    """The files and the container of one run.

    - `is_new`: the container was empty when this run first used it: it has the files of the
      session, but not the interpreter of earlier runs. Cleared once the model has been told.
    """

    def __init__(
        self,
        owner: Workspaces,
        session: str,
        container_id: str,
        file_ids: tuple[str, ...],
        skills: tuple[SkillFolder, ...],
    ) -> None:
        self._owner = owner
        self._session = session
        self._file_ids = file_ids
        self.container_id = container_id
        self.skills = skills
        self.is_new = False
        self._prepared: Container | None = None
        self._generation = -1

    async def container(self) -> Container:
        """Return the container with the files of the session. Raises the errors of the sandbox."""
        container = await self._owner.prepared(self)
        self._prepared, self._generation = container, container.generation
        return container

    def is_ready(self, container: Container) -> bool:
        """Whether this run has already prepared the container, and it has not been replaced."""
        return container is self._prepared and container.generation == self._generation

    async def files(self) -> list[StoredFile]:
        """Return the files that the model may read, oldest first."""
        return await self._owner.list(self._session, self._file_ids)

    async def read(self, id: str) -> bytes:
        """Return the content of a file. Raises ServiceError."""
        return await self._owner.read(id)

    def note_present(self, ids: Iterable[str]) -> None:
        """Record files that the container made itself, so that they are not written into it."""
        if self._prepared is not None:
            self._owner.note_present(self._prepared, ids)


def _latest(files: list[StoredFile]) -> list[StoredFile]:
    """Return the newest file of each name that has content, up to MAX_RESTORED_BYTES."""
    named = {file.name: file for file in files if not file.elided and file.code is None}
    kept: list[StoredFile] = []
    left = MAX_RESTORED_BYTES
    for file in reversed(named.values()):
        left -= file.size_bytes
        if left < 0:
            break
        kept.append(file)
    return kept[::-1]


def container_id(session: str) -> str:
    """Return the id of a session's container: `cntr_` and the session id, or a hash of a session id
    that is long or has other characters. Different sessions have different containers."""
    if PLAIN_SESSION_ID.fullmatch(session):
        return CONTAINER_PREFIX + session
    return CONTAINER_PREFIX + "h_" + hashlib.blake2b(session.encode(), digest_size=16).hexdigest()
