"""Jobs that run in a container, and their results."""

from __future__ import annotations

from typing import Literal

import msgspec

JobStatus = Literal["success", "error", "timeout"]


class DeclaredFile(msgspec.Struct, frozen=True):
    """A file that a job must make. `name`: path relative to the working directory."""

    name: str
    format: str | None = None


class CollectedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A regular file that a job made or changed, read inside the sandbox.

    - `name`: path relative to the working directory.
    - `data`: the content; None if it is larger than the limit, or for an error.
    - `code`, `message`: why a declared file could not be collected: `not_produced`,
      `not_a_regular_file`, `too_large`, `unreadable`.
    """

    name: str
    data: bytes | None = None
    size_bytes: int = 0
    code: str | None = None
    message: str | None = None


class PythonJob(msgspec.Struct, frozen=True, kw_only=True):
    """Code for the container's Python interpreter. `timeout_s`: seconds until it is interrupted."""

    code: str
    timeout_s: float = 60.0
    outputs: tuple[DeclaredFile, ...] = ()


class PythonResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a PythonJob.

    - `exception`: the traceback, or why the code did not finish.
    - `result`, `result_type`: repr and type name of the last expression.
    - `images`, `video_frames`: PNG files.
    - `interrupted`, `killed`: how a job ended that ran out of time.
    - `state_lost`: the interpreter is a new one: variables of earlier jobs are gone.
    - `files_lost`: the container is a new one: files of earlier jobs are gone, too.
    """

    status: JobStatus
    stdout: str = ""
    stderr: str = ""
    exception: str | None = None
    result: str | None = None
    result_type: str | None = None
    images: tuple[bytes, ...] = ()
    video_frames: tuple[bytes, ...] = ()
    files: tuple[CollectedFile, ...] = ()
    execution_time_ms: int = 0
    interrupted: bool = False
    killed: bool = False
    state_lost: bool = False
    files_lost: bool = False


class ShellJob(msgspec.Struct, frozen=True, kw_only=True):
    """Commands for a new shell, joined by newlines. `max_output_chars`: of stdout and of stderr."""

    commands: tuple[str, ...]
    timeout_s: float = 600.0
    max_output_chars: int = 4096
    outputs: tuple[DeclaredFile, ...] = ()


class ShellResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a ShellJob.

    - `exit_code`: None if the shell was killed.
    - `files_lost`: the container is a new one: files of earlier jobs are gone.
    """

    status: JobStatus
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    files_lost: bool = False
    files: tuple[CollectedFile, ...] = ()
    execution_time_ms: int = 0


class InputFile(msgspec.Struct, frozen=True):
    """A file for the working directory. `name`: a name without slashes."""

    name: str
    data: bytes


class SkillFolder(msgspec.Struct, frozen=True):
    """A skill, mounted read-only at `skills/<directory>`. `files`: relative path -> content."""

    directory: str
    files: dict[str, bytes]


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of the sandbox that hold on this machine.

    - `namespaces`: user, mount, PID, IPC and UTS namespaces, with a private root.
    - `network`: the network that tools really have: `none`, `loopback` or `full`.
    - `missing`: (layer, reason) of each layer that does not hold.
    """

    namespaces: bool = False
    landlock: bool = False
    seccomp: bool = False
    limits: bool = False
    cgroup: bool = False
    network: Literal["none", "loopback", "full"] = "full"
    missing: tuple[tuple[str, str], ...] = ()
