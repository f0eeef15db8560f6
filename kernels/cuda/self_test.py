"""Which kernels of the CUDA library serve a device: those that were tried on it and are right.

A wrong kernel may as well never end, or take its process with it. So kernels are tried in a process
of their own (`cuda/self_test_child.py`), each of whose answers has a deadline of its own: what
gives none is
declined like what answers wrongly, and Triton serves. The verdict is kept in a file, so that only
the first start with a library on a device takes the time.
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
"""Of one kernel, from the answer before it on."""

START_TIMEOUT_S = 180.0
"""Until a process can try kernels: it imports torch and Triton, perhaps from a slow disk."""

MOST_S = 300.0
"""After so long no further process is started."""

STARTED = "started"
"""The first line of a judge."""

DEVICE_LOST = 86
"""What a judge ends with whose kernel took the device from its process, so that nothing else can be
tried in it."""

# The library's kernels, in the order in which they are tried.
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


def declined(library: Path, device: str, kept_in: Path | None = None) -> dict[str, str]:
    """Why which kernels of the library in that file are not to be used on `device`.

    Takes some seconds, and up to `TIMEOUT_S` for each kernel that does not end; no time where the
    verdict is kept in the folder `kept_in`. One of kernels that could not be tried is not kept.
    """
    kept = None if kept_in is None else kept_in / f"{_digest(library, device)}.json"
    verdict = None if kept is None else _read(kept)
    if verdict is None:
        verdict, untried = _run_self_test(library, device)
        # Where nothing is right the kernels may not be what is wrong: others may fill the device.
        if kept is not None and not untried and len(verdict) < len(KERNELS):
            _write(kept, verdict)
    for name, reason in verdict.items():
        log.warning("the CUDA library's %s is not used: %s", name, reason)
    return verdict


def _digest(library: Path, device: str) -> str:
    """Of what the verdict depends on."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    facts = f"{name}\n{torch.__version__}\n".encode()
    tuning = TABLE.read_bytes()  # other forms of the kernels are other code
    return hashlib.sha256(facts + tuning + library.read_bytes()).hexdigest()[:32]


def _read(kept: Path) -> dict[str, str] | None:
    try:
        verdict = json.loads(kept.read_text())
    except (OSError, ValueError):
        return None
    return verdict if isinstance(verdict, dict) else None


def _write(kept: Path, verdict: dict[str, str]) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(verdict))
    except OSError as error:
        log.info("the verdict on the CUDA library is not kept: %s", error)


class _NotStarted(Exception):
    """A process came to try nothing. The message says why."""


def _run_self_test(library: Path, device: str) -> tuple[dict[str, str], list[str]]:
    """Starts a process for all kernels, and one more for those after each that ended it. Also gives
    the kernels that nobody came to try, which are declined like the others."""
    verdict: dict[str, str] = {}
    left = list(KERNELS)
    deadline_s = time.monotonic() + MOST_S
    while left:
        try:
            if time.monotonic() > deadline_s:
                raise _NotStarted(f"those before it took more than {MOST_S:.0f} s")
            answers, ending = _run_child(library, device, left, list(verdict))
        except _NotStarted as reason:
            return verdict | dict.fromkeys(left, f"it was not tried: {reason}"), left
        verdict |= {name: found_error for name, found_error in answers.items() if found_error}
        left = [name for name in left if name not in answers]
        if left and (ending or not answers):
            verdict[left.pop(0)] = ending or "its process lost the device"
    return verdict, []


def _run_child(
    library: Path, device: str, names: list[str], without: list[str]
) -> tuple[dict[str, str], str]:
    """What a process says of kernels in their order, "" of one that is right; and how it ended, ""
    where the last one that it speaks of is to blame. Raises _NotStarted."""
    command = [sys.executable, "-m", "penstock.kernels.cuda.self_test_child", str(library), device]
    command += [",".join(names), ",".join(without)]
    answers: dict[str, str] = {}
    with (
        TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as child,
    ):
        assert child.stdout is not None
        said: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=_pass_on, args=(child.stdout, said), daemon=True).start()
        try:
            if not _has_started(said):
                code = child.wait()
                raise _NotStarted(f"the process for it ended with {code}{_last_words(errors)}")
            while (line := said.get(timeout=TIMEOUT_S)) is not None:
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
        return answers, f"the process that tried it ended with {code}{_last_words(errors)}"


def _last_words(errors: IO[bytes]) -> str:
    """The last line of what a process that has ended wrote there, after ": "; "" where it wrote
    nothing."""
    errors.seek(0)
    written = errors.read().decode(errors="replace").strip()
    return f": {written.splitlines()[-1]}" if written else ""


def _has_started(said: SimpleQueue[str | None]) -> bool:
    """Whether a judge says so, before it ends. What else is printed first is not heard. Raises
    _NotStarted where it takes too long."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    try:
        while (line := said.get(timeout=max(0.0, deadline_s - time.monotonic()))) is not None:
            if line == STARTED:
                return True
    except Empty:
        raise _NotStarted(f"no process for it started within {START_TIMEOUT_S:.0f} s") from None
    return False


def _pass_on(stdout: IO[bytes], said: SimpleQueue[str | None]) -> None:
    """In a thread: every line that a judge says, then None."""
    for line in stdout:
        said.put(line.decode(errors="replace").rstrip("\n"))
    said.put(None)
