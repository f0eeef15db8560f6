"""A worker process in which Triton kernels are interpreted: an import decides that for all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.kernels.op import Case, Op

Ask = Callable[[str, Op, Case], Any]

_SCRIPT = Path(__file__).parent / "kernels" / "interpret.py"


@contextlib.contextmanager
def interpreting(*arguments: str) -> Iterator[Ask]:
    """Asks kernels/interpret.py, started with `arguments`, for a check of one case at a time."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONWARNINGS": "ignore",
    }
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
