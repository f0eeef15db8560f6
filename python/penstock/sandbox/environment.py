"""The environment variables of programs in a container: none come from the server's own."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.sandbox.launcher import Sandbox
from penstock.sandbox.python_facts import PythonFacts

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Numeric libraries start a thread per core, which exceeds the limits of a container.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MAX_THREADS = 4


def shell_environment(sandbox: Sandbox, facts: PythonFacts | None) -> dict[str, str]:
    """Return the environment of a shell; with `facts`, its `python3` is the Python tool's."""
    folders = SYSTEM_PATH
    if facts is not None:
        folders = f"{Path(facts.executable).parent}:{folders}"
    threads = str(min(MAX_THREADS, os.cpu_count() or 1))
    return {
        "PATH": folders,
        "HOME": sandbox.working_directory,
        "TMPDIR": sandbox.temporary_directory,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{sandbox.temporary_directory}/matplotlib",
        **dict.fromkeys(THREAD_VARIABLES, threads),
    }


def python_environment(sandbox: Sandbox, facts: PythonFacts) -> dict[str, str]:
    """Return the environment of the interpreter."""
    return {**shell_environment(sandbox, facts), "PYTHONUNBUFFERED": "1"}
