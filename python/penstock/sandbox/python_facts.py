"""Facts about the Python of the Python tool: version, packages, the folders that it needs.

The server asks that Python once, outside the sandbox and without the environment of the server.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.base.errors import Unavailable

RUNNER = Path(__file__).with_name("runner")
TIMEOUT_S = 60.0
PACKAGE_FOLDERS = ("site-packages", "dist-packages")


class PythonFacts(msgspec.Struct, frozen=True):
    """The Python of the Python tool.

    - `version`: for example "3.12.1".
    - `executable`: its path.
    - `prefixes`, `path`: folders of the installation, and its `sys.path`.
    - `packages`: names of the installed distributions, sorted, at most 2000.
    - `code`: compiled code of the files in `runner/`, in hex.
    """

    version: str
    executable: str
    prefixes: tuple[str, ...]
    path: tuple[str, ...]
    packages: tuple[str, ...]
    code: dict[str, str]

    def folders(self) -> tuple[str, ...]:
        """Return the folders that this Python needs inside the sandbox.

        Folders outside the installation are added to `sys.path` by development installs. They may
        hold more than packages, so only folders named as package folders are included.
        """
        packages = [entry for entry in self.path if Path(entry).name in PACKAGE_FOLDERS]
        wanted = [*self.prefixes, *packages, str(Path(self.executable).resolve().parent)]
        return without_nested(folder for folder in wanted if folder not in ("", "/"))


def without_nested(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders, sorted, without those that lie in another one of them."""
    kept: list[Path] = []
    for path in sorted({Path(folder) for folder in folders}):
        if not any(other in path.parents for other in kept):
            kept.append(path)
    return tuple(map(str, kept))


async def query_python(command: str) -> PythonFacts:
    """Return the facts about the Python `command` (a path, or a name on PATH).

    Raises Unavailable if it cannot be started or is no Python from 3.8.
    """
    path = shutil.which(command)
    if path is None:
        raise Unavailable(f"code_exec_python: no Python interpreter {command!r} was found.")
    process = await asyncio.create_subprocess_exec(
        path,
        "-I",
        str(RUNNER / "facts.py"),
        str(RUNNER),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except asyncio.TimeoutError:
        raise Unavailable(f"code_exec_python: {command!r} did not answer.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(f"code_exec_python: {command!r} does not work: {''.join(reason)}")
    try:
        return msgspec.json.decode(output, type=PythonFacts)
    except msgspec.DecodeError:
        raise Unavailable(f"code_exec_python: {command!r} is no Python interpreter.") from None
