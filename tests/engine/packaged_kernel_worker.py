"""The worker without Triton: steps of runtimes, every launch of them by a packaged kernel.

The driver is a double that runs nothing (fake_cuda_driver.c), so results are whatever memory holds:
what is looked at is which kernels are started, and with what. Prints one JSON object: of each of
`WAYS` what was packaged, served and missing, the kernels that were launched, and each launch whose
parameters are not what the cubin expects.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

sys.modules["triton"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from lora_base_models import LORA, with_adapters  # noqa: E402

from penstock.config import EngineSettings  # noqa: E402
from penstock.dialog import Sampling  # noqa: E402
from penstock.kernels.cuda.launcher import DriverLauncher  # noqa: E402
from penstock.kernels.ops import all_ops  # noqa: E402
from penstock.kernels.registry import KernelRegistry, Machine  # noqa: E402
from penstock.kernels.triton import TritonOps  # noqa: E402
from penstock.kernels.triton.compile.archive import Archive, Cubin  # noqa: E402
from penstock.kernels.triton.compile.elf import parameters  # noqa: E402
from penstock.kernels.triton.compile.launch import serve_packaged  # noqa: E402
from penstock.kernels.triton.compile.packaged_kernels import PackagedKernels  # noqa: E402
from penstock.models.hub.model_files import ModelFiles  # noqa: E402
from penstock.models.hub.sources import files_at  # noqa: E402
from penstock.models.loader.model_loader import load_model  # noqa: E402
from penstock.runtime.gpu.load import place  # noqa: E402
from penstock.runtime.gpu.memory import plan_device_memory  # noqa: E402
from penstock.runtime.gpu.runtime import GpuRuntime  # noqa: E402
from penstock.scheduler import NO_ADAPTER, NewSequence, Scheduler  # noqa: E402
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB  # noqa: E402

Products: TypeAlias = Literal["measured", "invariant"]
Dense: TypeAlias = Literal["stored", "float8"]

STREAM = 7
ROWS = 6


class Pretended(TritonOps):
    """On CPU tensors, the kernels of a GPU: they are started, and do nothing."""

    def __init__(self, products: Products, dense: Dense) -> None:
        super().__init__("cpu", torch.bfloat16, products=products, dense=dense)
        self.table = KernelRegistry(
            all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"})
        )


@dataclass(frozen=True, slots=True)
class Way:
    """`model`: its file or folder, under that of all. Dense layers are "invariant": by "measured",
    the library would have them beyond a few tokens."""

    model: str
    products: Products
    settings: dict[str, Any] = field(default_factory=dict)


WAYS = {
    "float": Way("plain", "invariant"),
    "adapters": Way("plain", "invariant", {"lora": LORA}),
    "8-bit floats": Way("float8", "measured"),
    "8-bit floats, deterministic": Way("float8", "invariant", {"deterministic": True}),
    "rounded to 8-bit floats": Way("plain", "measured", {"quantize": "fp8"}),
    "Q8_0": Way("Q8_0.gguf", "measured"),
    "Q4_1": Way("Q4_1.gguf", "measured"),
}


class Noting(PackagedKernels):
    """Notes what is launched, before it is."""

    def __init__(self, archive: Archive, launcher: DriverLauncher) -> None:
        super().__init__(archive, launcher, lambda: STREAM)
        self.noted: list[tuple[Any, ...]] = []

    def start(self, kernel: Any, grid: Any, arguments: Any, *rest: Any) -> str | None:
        plain = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        self.noted.append((kernel.fn.__name__, grid, plain))
        return super().start(kernel, grid, arguments, *rest)


def run(runtime: GpuRuntime, adapter_slot: int | None) -> None:
    """Prompts long and short, alone and beside decodes; draws on the device and by the host. The
    long one with the adapter in that slot."""
    scheduler = Scheduler(
        num_blocks=runtime.info.cache_blocks,
        block_size=16,
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
    )
    biased = Sampling(temperature=0.0, logit_bias={3: 4.0})
    dry = Sampling(temperature=0.0, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1)
    for name, length, sampling in [
        ("short", 1, Sampling(temperature=0.0)),
        ("long", 100, Sampling(temperature=0.8, top_k=5)),
        ("biased", 9, biased),
        ("dry", 9, dry),
    ]:
        tokens = tuple(index % VOCAB for index in range(length))
        own = NO_ADAPTER if adapter_slot is None or name != "long" else adapter_slot
        new = NewSequence(
            name,
            token_ids=tokens,
            sampling=sampling,
            seed=1,
            max_tokens=4,
            adapter="" if own == NO_ADAPTER else "generation",
        )
        scheduler.submit(new, adapter_slot=own)
    for _ in range(100):
        plan = scheduler.plan()
        if plan is None:
            return
        scheduler.commit(runtime.execute(plan))
    raise AssertionError("the requests do not end")


def wrong_launches(packaged: Noting, launched: list[str], archive: Archive) -> list[str]:
    """Launches that the driver got otherwise than they were meant."""
    lines = [line.split(" ") for line in launched]
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


def outcome(way: Way, archive: Archive, launcher: DriverLauncher, driver: Any, folder: Path) -> Any:
    """What was started, and how."""
    before = len(launches(driver))
    packaged = Noting(archive, launcher)
    serve_packaged(packaged)
    settings = EngineSettings(
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
        block_size=16,
        cache_mb=1,
        **way.settings,
    )
    path = folder / way.model
    files = files_at(path, path.name) if path.is_dir() else ModelFiles(path.name, "gguf", path)
    model = load_model(files, settings.dtype, float8="float8")
    memory = plan_device_memory(model.spec, 1 << 20, settings, 1 << 30)
    ops = Pretended(way.products, "float8" if settings.quantize else "stored")
    runtime = place(model, memory, settings, ops)
    adapted = runtime.adapters is not None
    run(with_adapters(runtime, folder) if adapted else runtime, adapter_slot=1 if adapted else None)
    return {
        "packaged": len(packaged),
        "served": packaged.served,
        "missing": packaged.missing,
        "launches": len(packaged.noted),
        "kernels": sorted({name for name, _, _ in packaged.noted}),
        "wrong": wrong_launches(packaged, launches(driver)[before:], archive),
        "report": packaged.report(),
    }


def launches(driver: Any) -> list[str]:
    """What the driver was asked to launch, so far."""
    notes = driver.double_notes().decode().splitlines()
    return [line for line in notes if line.startswith("launch ")]


def main(library: str, driver_path: str, archive_path: str, folder: str) -> None:
    archive = Archive(Path(archive_path))
    launcher = DriverLauncher(Path(library), 0, driver_path)
    # What is read from a file is copied, as it is to a device: there it need not be aligned.
    mapped = torch.from_numpy
    torch.from_numpy = lambda array: mapped(array).clone()
    # Results are never computed: filled, they are at least the same every time.
    torch.use_deterministic_algorithms(True)
    driver = ctypes.CDLL(driver_path)
    driver.double_notes.restype = ctypes.c_char_p
    print(
        json.dumps(
            {
                name: outcome(way, archive, launcher, driver, Path(folder))
                for name, way in WAYS.items()
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
