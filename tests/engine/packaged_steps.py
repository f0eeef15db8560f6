"""The worker without Triton: a runtime's steps, every launch of them by a packaged kernel.

The driver is a double that runs nothing (driver_double.c), so results are whatever memory holds:
what is looked at is which kernels are started, and with what. Prints one JSON object: what was
packaged, served and missing, and each launch whose parameters are not what the cubin expects.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path
from typing import Any

sys.modules["triton"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from small_llama import CONTEXT, VOCAB  # noqa: E402

from penstock.config import EngineSettings  # noqa: E402
from penstock.dialog import Sampling  # noqa: E402
from penstock.kernels.cuda.launcher import DriverLauncher  # noqa: E402
from penstock.kernels.op import KernelTable, Machine  # noqa: E402
from penstock.kernels.ops import all_ops  # noqa: E402
from penstock.kernels.triton import TritonOps  # noqa: E402
from penstock.kernels.triton.archive import Archive, Cubin  # noqa: E402
from penstock.kernels.triton.elf import parameters  # noqa: E402
from penstock.kernels.triton.launch import serve_packaged  # noqa: E402
from penstock.kernels.triton.packaged import Packaged  # noqa: E402
from penstock.models.loading import load_model  # noqa: E402
from penstock.models.sources import files_at  # noqa: E402
from penstock.runtime.gpu import GpuRuntime  # noqa: E402
from penstock.runtime.gpu_graphs import sizes_up_to  # noqa: E402
from penstock.runtime.gpu_load import place  # noqa: E402
from penstock.runtime.gpu_memory import plan_device_memory  # noqa: E402
from penstock.scheduler import Scheduler  # noqa: E402

STREAM = 7
ROWS = 6


class PretendedOps(TritonOps):
    """On CPU tensors, the kernels of a GPU: they are started, and do nothing."""

    def __init__(self) -> None:
        # Invariant: other products of more than a few tokens are cuBLAS's.
        super().__init__("cpu", torch.bfloat16, products="invariant")
        self.table = KernelTable(all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"}))


class Noting(Packaged):
    """Notes what is launched, before it is."""

    def __init__(self, archive: Archive, launcher: DriverLauncher) -> None:
        super().__init__(archive, launcher, lambda: STREAM)
        self.noted: list[tuple[Any, ...]] = []

    def start(self, kernel: Any, grid: Any, arguments: Any, *rest: Any) -> str | None:
        plain = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        self.noted.append((kernel.fn.__name__, grid, plain))
        return super().start(kernel, grid, arguments, *rest)


def run(runtime: GpuRuntime) -> None:
    """Prompts long and short, alone and beside decodes; draws on the device and by the host."""
    scheduler = Scheduler(
        num_blocks=runtime.info.cache_blocks,
        block_tokens=16,
        context_tokens=CONTEXT,
        max_seqs=ROWS,
        token_budget=64,
    )
    biased = Sampling(temperature=0.0, logit_bias={3: 4.0})
    for name, length, sampling in [
        ("short", 1, Sampling(temperature=0.0)),
        ("long", 100, Sampling(temperature=0.8, top_k=5)),
        ("biased", 9, biased),
    ]:
        tokens = tuple(index % VOCAB for index in range(length))
        scheduler.submit(name, token_ids=tokens, sampling=sampling, seed=1, max_tokens=4)
    for _ in range(100):
        plan = scheduler.plan()
        if plan is None:
            return
        scheduler.commit(runtime.execute(plan))
    raise AssertionError("the requests do not end")


def wrong_launches(packaged: Noting, notes: str, archive: Archive) -> list[str]:
    """Launches that the driver got otherwise than they were meant."""
    lines = [line.split(" ") for line in notes.splitlines() if line.startswith("launch ")]
    wrong = [f"{len(lines)} launches, not {len(packaged.noted)}"] * (
        len(lines) != len(packaged.noted)
    )
    by_entry: dict[str, list[Cubin]] = {}
    for cubin in archive.cubins:
        by_entry.setdefault(cubin.entry, []).append(cubin)
    for (name, grid, values), line in zip(packaged.noted, lines, strict=False):
        _, entry, blocks, threads, shared, stream, given = line
        (cubin, *others) = by_entry[entry]
        places = parameters(archive.image(cubin), entry)
        expected = bytearray(max(offset + size for offset, size in places))
        for (offset, size), value in zip(places, values, strict=False):
            letter = "<f" if isinstance(value, float) else {4: "<i", 8: "<Q"}[size]
            struct.pack_into(letter, expected, offset, value)
        wanted = ",".join(map(str, (*grid, 1, 1)[:3]))
        sizes = {(f"{32 * one.num_warps},1,1", str(one.shared_bytes)) for one in (cubin, *others)}
        if (entry, blocks, stream, given) != (name, wanted, str(STREAM), expected.hex()):
            wrong.append(" ".join(line))
        elif (threads, shared) not in sizes:
            wrong.append(f"{entry}: {threads} threads, {shared} bytes")
    return wrong


def main(library: str, driver: str, archive_path: str, folder: str) -> None:
    archive = Archive(Path(archive_path))
    packaged = Noting(archive, DriverLauncher(Path(library), 0, driver))
    serve_packaged(packaged)
    # Results are never computed: filled, they are at least the same every time.
    torch.use_deterministic_algorithms(True)
    settings = EngineSettings(
        context_tokens=CONTEXT, max_seqs=ROWS, token_budget=64, block_tokens=16, cache_mb=1
    )
    model = load_model(files_at(Path(folder), "small-llama"), settings.dtype)
    memory = plan_device_memory(model.spec, 1 << 20, settings, 1 << 30, sizes_up_to(ROWS))
    run(place(model, memory, settings, PretendedOps()))
    loaded = ctypes.CDLL(driver)
    loaded.double_notes.restype = ctypes.c_char_p
    notes = loaded.double_notes().decode()
    print(
        json.dumps(
            {
                "packaged": len(packaged),
                "served": packaged.served,
                "missing": packaged.missing,
                "launches": len(packaged.noted),
                "wrong": wrong_launches(packaged, notes, archive),
                "report": packaged.report(),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
