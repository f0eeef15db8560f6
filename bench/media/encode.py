"""Encodes an image with our tower and with transformers' in torch, on the same weights.

Times are CPU times of all threads, which a shared machine disturbs least.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock import _native
from penstock.kernels.native.ops import NativeOps
from penstock.models.families import registry
from penstock.models.media.prepared import PreparedMedia
from penstock.models.media.tiles import TileLayout
from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint

WORKER: Final = Path(__file__).parents[1] / "workers" / "torch_image_worker.py"
SHAPES: Final = ("smolvlm-256m", "llava-1.5", "gemma-3")
"""The towers and projectors of these models; the worker has their configs."""


class Ours:
    """Our tower, in this process."""

    def __init__(self, folder: Path, threads: int | None) -> None:
        spec = registry.media_spec_of_folder(folder)
        assert spec is not None, "the worker writes multimodal models"
        self.processor = spec.processor
        self._ops = NativeOps.eager(_native.ThreadPool(threads or len(os.sched_getaffinity(0))))
        (tower,) = spec.towers
        self._tower = tower.open(open_checkpoint(folder, "bf16"), "auto").build(self._ops)

    def encode(self, media: PreparedMedia) -> tuple[np.ndarray, float, list[float]]:
        """Return the rows, the seconds of the whole, and those of each piece."""
        began = last = time.process_time()
        pieces: list[float] = []
        steps = self._tower.encode(self._ops, media, PieceBudget())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value.rows, time.process_time() - began, pieces
            now = time.process_time()
            pieces.append(now - last)
            last = now


class Torch:
    """transformers in its own process, which answers one line of JSON per call."""

    def __init__(self, python: str, folder: Path, threads: int | None) -> None:
        self._process = subprocess.Popen(
            [python, str(WORKER), "serve", str(folder), str(threads or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def encode(self, path: Path) -> tuple[np.ndarray, float]:
        """Return the rows of the tiles in the file `path`, and the seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return np.load(answer["rows"]), answer["seconds"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a measurement.

    - `size`: (height, width) of the image.
    - `tiles`: how many of its tiles are encoded; 0: all.
    - `peer`: the Python interpreter of the peer.
    - `threads`: of each side; None: one per core.
    """

    size: tuple[int, int]
    tiles: int
    peer: str
    repeats: int
    threads: int | None


def measure(shape: str, dtype: str, options: Options) -> dict[str, Any]:
    """Return the figures of one shape: the least and the median seconds of both sides, and the
    largest difference between their rows, relative to the largest element."""
    peer, threads = options.peer, options.threads
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([peer, str(WORKER), "make", str(folder), shape, dtype], check=True)
        ours, torch = Ours(folder, threads), Torch(peer, folder, threads)
        try:
            media = _first_tiles(ours.processor.image(_picture(*options.size)), options.tiles)
            tiles = folder / "tiles.npy"
            np.save(tiles, _tiles(media))
            times: dict[str, list[float]] = {"penstock": [], "torch": []}
            pieces: list[float] = []
            for _ in range(options.repeats + 1):  # the first of each is not counted
                rows, seconds, steps = ours.encode(media)
                times["penstock"].append(seconds)
                expected, seconds = torch.encode(tiles)
                times["torch"].append(seconds)
                pieces = steps
        finally:
            torch.close()
    difference = np.abs(np.asarray(rows) - expected).max() / np.abs(expected).max()
    return {
        "shape": shape,
        "dtype": dtype,
        "tiles": len(TileLayout.of(media).grids),
        "rows": len(rows),
        "differ_by": float(difference),
        "longest_piece_ms": round(1000 * max(pieces), 1),
        **{
            name: {
                "least_s": round(min(each[1:]), 3),
                "p50_s": round(statistics.median(each[1:]), 3),
            }
            for name, each in times.items()
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| shape | dtype | tiles | rows | penstock, s | torch, s | times faster |"
        " longest piece, ms | differ by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, torch = row["penstock"]["least_s"], row["torch"]["least_s"]
        lines.append(
            f"| {row['shape']} | {row['dtype']} | {row['tiles']} | {row['rows']} | {ours:.3f} |"
            f" {torch:.3f} | {torch / ours:.2f} | {row['longest_piece_ms']:.1f} |"
            f" {row['differ_by']:.1e} |"
        )
    return "\n".join(lines)


def _picture(height: int, width: int) -> np.ndarray:
    source = np.random.default_rng(1)
    small = source.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    return np.repeat(np.repeat(small, 16, 0), 16, 1)[:height, :width]


def _first_tiles(media: PreparedMedia, count: int) -> PreparedMedia:
    """Return the item with its first tiles only. `count` 0: all."""
    layout = TileLayout.of(media)
    grids = layout.grids[: count or None]
    kept = media.array()[: sum(rows * columns for rows, columns in grids)]
    sides = (side for grid in grids for side in grid)
    return PreparedMedia.of(media.kind, kept, (len(grids), *sides, *layout.extra))


def _tiles(media: PreparedMedia) -> np.ndarray:
    """Return the tiles as bytes, [N, height, width, 3]. All have the same size."""
    grids = TileLayout.of(media).grids
    (rows, columns), *_ = grids
    patches = media.array()
    side = round((patches.shape[1] // 3) ** 0.5)
    tiles = patches.reshape(len(grids), rows, columns, side, side, 3).transpose(0, 1, 3, 2, 4, 5)
    return np.ascontiguousarray(tiles).reshape(len(grids), rows * side, columns * side, 3)
