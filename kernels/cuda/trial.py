"""Which kernels of the CUDA library serve a device: those that were tried on it and are right.

A wrong kernel may as well never end, or take its process with it. So kernels are tried in a process
of their own (`cuda/judge.py`), whose answers have a deadline: what gives none is declined like what
answers wrongly, and Triton serves. The verdict is kept in a file, so that only the first start with
a library on a device takes the time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import torch

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0

LOST = 86
"""What a judge ends with whose kernel took the device from its process, so that nothing else can be
tried in it."""

# The library's kernels, in the order in which they are tried.
KERNELS = ("rms_norm", "linear", "rope_cache", "sample", "decode_attention", "prompt_attention")


def declined(library: Path, device: str, kept_in: Path | None = None) -> dict[str, str]:
    """Why which kernels of the library in that file are not to be used on `device`.

    Takes some seconds, and up to `TIMEOUT_S` for each kernel that does not end; no time where the
    verdict is kept in the folder `kept_in`.
    """
    kept = None if kept_in is None else kept_in / f"{_digest(library, device)}.json"
    verdict = None if kept is None else _read(kept)
    if verdict is None:
        verdict = _judged(library, device)
        # Where nothing is right the kernels may not be what is wrong: others may fill the device.
        if kept is not None and len(verdict) < len(KERNELS):
            _write(kept, verdict)
    for name, reason in verdict.items():
        log.warning("the CUDA library's %s is not used: %s", name, reason)
    return verdict


def _digest(library: Path, device: str) -> str:
    """Of what the verdict depends on."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    facts = f"{name}\n{torch.__version__}\n".encode()
    return hashlib.sha256(facts + library.read_bytes()).hexdigest()[:32]


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


def _judged(library: Path, device: str) -> dict[str, str]:
    """Starts a process for all kernels, and one more for those after each that ended it."""
    verdict: dict[str, str] = {}
    left = list(KERNELS)
    while left:
        answers, ending = _answers(library, device, left, list(verdict))
        verdict |= {name: complaint for name, complaint in answers.items() if complaint}
        left = [name for name in left if name not in answers]
        if left and (ending or not answers):
            verdict[left.pop(0)] = ending or "its process lost the device"
    return verdict


def _answers(
    library: Path, device: str, names: list[str], without: list[str]
) -> tuple[dict[str, str], str]:
    """What a process says of kernels in their order, "" of one that is right; and how it ended, ""
    where the last one that it speaks of is to blame."""
    command = [sys.executable, "-m", "penstock.kernels.cuda.judge", str(library), device]
    try:
        done = subprocess.run(
            [*command, ",".join(names), ",".join(without)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
        said, ending = done.stdout, f"the process that tried it ended with {done.returncode}"
        if done.returncode == LOST:
            ending = ""
    except subprocess.TimeoutExpired as late:
        said, ending = late.stdout or b"", f"it did not end within {TIMEOUT_S:.0f} s"
    lines = (line.partition(" ") for line in said.decode().splitlines())
    return {name: complaint for name, _, complaint in lines if name in names}, ending
