"""The tower of an `mmproj` file beside llama.cpp's libmtmd: no server, no language model."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock import _native
from penstock.kernels.native.ops import NativeOps
from penstock.models.families.registry import media_spec_of_mmproj
from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.gguf.gguf_file import GgufFile


class Ours:
    """Our tower, in this process."""

    def __init__(self, mmproj: Path, threads: int) -> None:
        file = GgufFile(mmproj)
        spec = media_spec_of_mmproj(file)
        (tower,) = spec.towers
        self._processor = spec.processor
        self._ops = NativeOps.eager(_native.ThreadPool(threads))
        self._tower = tower.open(file, "auto").build(self._ops)

    def encode(self, pixels: np.ndarray) -> tuple[float, int]:
        """Return the CPU seconds of the tower, and the rows, for [height, width, 3] bytes."""
        media = self._processor.image(pixels)
        began = time.process_time()
        steps = self._tower.encode(self._ops, media, PieceBudget())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return time.process_time() - began, len(end.value.rows)


class Llama:
    """The program of `bench/lab/llama_mtmd_encode.cc`."""

    def __init__(self, program: Path, pair: tuple[Path, Path], size: tuple[int, int], threads: int):
        self._process = subprocess.Popen(
            [str(program), *map(str, (*pair, *size, threads))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def encode(self, path: Path) -> tuple[float, int]:
        """Return the CPU seconds of the tower, and the rows, for a file of RGB bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answer = self._read()
        return answer["cpu_s"], answer["rows"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("llama-mtmd-encode ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(
    program: Path, pair: tuple[Path, Path], size: tuple[int, int], threads: int, rounds: int
) -> list[dict[str, Any]]:
    """Return the least CPU seconds of both sides in `rounds` rounds, after one that is not counted.
    `pair`: the GGUF model and its `mmproj` file; `size`: (width, height) of the image."""
    width, height = size
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    path = pair[0].with_suffix(".rgb")
    path.write_bytes(pixels.tobytes())
    ours, llama = Ours(pair[1], threads), Llama(program, pair, size, threads)
    times: dict[str, list[float]] = {"penstock": [], "llama.cpp": []}
    rows: dict[str, int] = {}
    try:
        for count in range(rounds + 1):
            for name, (seconds, found) in (
                ("penstock", ours.encode(pixels)),
                ("llama.cpp", llama.encode(path)),
            ):
                rows[name] = found
                if count or not rounds:
                    times[name].append(seconds)
    finally:
        llama.close()
    return [
        {"engine": name, "rows": rows[name], "cpu_s": round(min(found), 3)}
        for name, found in times.items()
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    ours, llama = rows
    return (
        "| rows | penstock, s | llama.cpp, s | times faster |\n|---|---|---|---|\n"
        f"| {ours['rows']} | {ours['cpu_s']:.2f} | {llama['cpu_s']:.2f} |"
        f" {llama['cpu_s'] / ours['cpu_s']:.2f} |"
    )
