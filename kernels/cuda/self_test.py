"""Self-test of the CUDA library: finds the kernels that must not be used on a device.

A faulty kernel may hang or crash its process. So a child process (`cuda/self_test_child.py`) tests
the kernels, each with a deadline. A kernel without an answer is rejected, like a kernel that
computes wrong results, and Triton's implementation is used instead. The verdict is kept in a file,
so that only the first start with a library on a device takes the time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from typing import IO

import torch

from penstock.kernels.cuda.tuning import TABLE

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""Seconds that the test of one kernel may take, counted from the previous answer of the child."""

START_TIMEOUT_S = 180.0
"""Seconds that a child may take to start: it imports torch and Triton, perhaps from a slow disk."""

TOTAL_S = 300.0
"""Seconds after which no further child is started."""

STARTED = "started"
"""The line that a child prints when it is ready to test kernels."""

DEVICE_LOST = 86
"""Exit status of a child that cannot test further kernels, because a kernel made the device
unusable for the process."""

# The library's kernels, in the order in which they are tested.
KERNELS = (
    "rms_norm",
    "linear",
    "linear_float8",
    "staged_linear",
    "rope_cache",
    "sample",
    "decode_attention",
    "prefill_attention",
)


def rejected_kernels(library: Path, device: str, folder: Path | None = None) -> dict[str, str]:
    """Return the kernels of a library file that must not be used on `device` -> reason.

    The test takes some seconds, plus up to `TIMEOUT_S` for each kernel that hangs. The test is
    skipped if `folder` has the verdict. A verdict is not saved if a kernel could not be tested, or
    if all kernels were rejected.
    """
    path = None if folder is None else folder / f"{_digest(library, device)}.json"
    verdict = None if path is None else _read(path)
    if verdict is None:
        verdict, untested = _run_self_test(library, device)
        # If all kernels fail, the cause may be elsewhere: other processes may fill the device.
        if path is not None and not untested and len(verdict) < len(KERNELS):
            _write(path, verdict)
    for name, reason in verdict.items():
        log.warning("the CUDA library's %s is not used: %s", name, reason)
    return verdict


def _digest(library: Path, device: str) -> str:
    """Hash everything on which the verdict depends: device, torch version, tuning and library."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    facts = f"{name}\n{torch.__version__}\n".encode()
    tuning = TABLE.read_bytes()  # other kernel variants are other code
    return hashlib.sha256(facts + tuning + library.read_bytes()).hexdigest()[:32]


def _read(path: Path) -> dict[str, str] | None:
    try:
        verdict = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return verdict if isinstance(verdict, dict) else None


def _write(path: Path, verdict: dict[str, str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(verdict))
    except OSError as error:
        log.info("the verdict on the CUDA library is not kept: %s", error)


class _NotStarted(Exception):
    """Raised for a child that tested no kernel. The message says why."""


def _run_self_test(library: Path, device: str) -> tuple[dict[str, str], list[str]]:
    """Test all kernels in child processes. If a kernel ends its child, a new child tests the
    remaining kernels. Return the verdict, and the kernels that could not be tested, which the
    verdict rejects too."""
    verdict: dict[str, str] = {}
    left = list(KERNELS)
    deadline_s = time.monotonic() + TOTAL_S
    while left:
        try:
            if time.monotonic() > deadline_s:
                raise _NotStarted(f"the kernels before it took more than {TOTAL_S:.0f} s")
            answers, ending = _run_child(library, device, left, list(verdict))
        except _NotStarted as reason:
            return verdict | dict.fromkeys(left, f"it was not tested: {reason}"), left
        verdict |= {name: found_error for name, found_error in answers.items() if found_error}
        left = [name for name in left if name not in answers]
        if left and (ending or not answers):
            verdict[left.pop(0)] = ending or "its process lost the device"
    return verdict, []


def _run_child(
    library: Path, device: str, names: list[str], without: list[str]
) -> tuple[dict[str, str], str]:
    """Test the kernels `names` in a child process that does not use the kernels `without`. Return
    two results: kernel -> answer ("" if the kernel is correct); and how the child ended ("" if the
    last kernel in the answers made the device unusable). Raises _NotStarted."""
    command = [sys.executable, "-m", "penstock.kernels.cuda.self_test_child", str(library), device]
    command += [",".join(names), ",".join(without)]
    answers: dict[str, str] = {}
    with (
        TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as child,
    ):
        assert child.stdout is not None
        lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True).start()
        try:
            if not _has_started(lines):
                code = child.wait()
                raise _NotStarted(f"its process ended with {code}{_last_line(errors)}")
            while (line := lines.get(timeout=TIMEOUT_S)) is not None:
                name, _, found_error = line.partition(" ")
                if name in names:
                    answers[name] = found_error
            code = child.wait(TIMEOUT_S)
        except (Empty, subprocess.TimeoutExpired):
            return answers, f"it did not end within {TIMEOUT_S:.0f} s"
        finally:
            child.kill()
        if code == DEVICE_LOST:
            return answers, ""
        return answers, f"the process that tested it ended with {code}{_last_line(errors)}"


def _last_line(errors: IO[bytes]) -> str:
    """Return ": " and the last line of a file, or "" for an empty file."""
    errors.seek(0)
    written = errors.read().decode(errors="replace").strip()
    return f": {written.splitlines()[-1]}" if written else ""


def _has_started(lines: SimpleQueue[str | None]) -> bool:
    """Wait until a child prints STARTED and return True; return False if the child ends before.
    Other lines are ignored. Raises _NotStarted after `START_TIMEOUT_S`."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    try:
        while (line := lines.get(timeout=max(0.0, deadline_s - time.monotonic()))) is not None:
            if line == STARTED:
                return True
    except Empty:
        raise _NotStarted(f"its process did not start within {START_TIMEOUT_S:.0f} s") from None
    return False


def _read_lines(stdout: IO[bytes], lines: SimpleQueue[str | None]) -> None:
    """Put every line that a child prints into a queue, and None at the end. Runs in a thread."""
    for line in stdout:
        lines.put(line.decode(errors="replace").rstrip("\n"))
    lines.put(None)
