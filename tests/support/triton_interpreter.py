"""Processes that interpret Triton kernels; importing Triton decides that for the whole process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.kernels.registry import Case, Op

Ask = Callable[[str, Op, Case], Any]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_SCRIPT = Path(__file__).parents[1] / "kernels" / "interpreter_worker.py"


class _Kept:
    """Replaces the object that would restore Triton's language."""

    def restore(self) -> None:
        pass


def _patch_language_once() -> None:
    """Patch Triton's language once instead of at each call of each function, which takes a third of
    the interpreter's time. A process that only interprets leaves it patched."""
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()

    def patch_once(function: Any) -> _Kept:
        languages = {id(value) for value in function.__globals__.values() if _is_language(value)}
        if not languages <= patched:
            patch(function)
            patched.update(languages)
        return _Kept()

    interpreter._patch_lang = patch_once


def _is_language(value: object) -> bool:
    return getattr(value, "__name__", "") in ("triton.language", "triton.language.core")


if INTERPRETED:
    _patch_language_once()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}


def passes_interpreted(file: str) -> None:
    """Assert that the tests of a file pass with Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton has no build for this platform")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout[-4000:]


@contextlib.contextmanager
def interpreter_worker(*arguments: str) -> Iterator[Ask]:
    """Start interpreter_worker.py with `arguments`; yield a function that asks it to check one
    case."""
    environment = _environment() | {"PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, str(_SCRIPT), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None

        def question(check: str, op: Op, case: Case) -> Any:
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(json.dumps((check, op.name, case.name)) + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            assert answer, "the worker died; its traceback is on stderr"
            return json.loads(answer)

        yield question
        worker.stdin.close()
