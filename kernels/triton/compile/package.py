"""Writes the archives of compiled kernels for a distribution, one per target.

    python -m penstock.kernels.triton.compile.package FOLDER [--targets 80,90,100] [--processes N]

Needs Triton and no GPU. The build fails if a kernel cannot be launched as `archive` describes: if
it uses scratch memory or clusters, or has another layout of parameters.
"""

from __future__ import annotations

import argparse
import os
import struct
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import triton

from penstock.kernels.triton.compile.ahead_of_time import can_run, compile_for
from penstock.kernels.triton.compile.archive import Cubin, file_of, layout, write_archive
from penstock.kernels.triton.compile.elf import parameters
from penstock.kernels.triton.compile.packaged_signatures import packaged_signatures
from penstock.kernels.triton.compile.signature import Signature, source_hash

# Capability -> the target that Triton compiles for.
TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a"}


def build(
    folder: Path, signatures: list[Signature], capabilities: Iterable[int], processes: int = 0
) -> list[Path]:
    """Compile the signatures for each capability, write one archive `kernels_<target>.zip` per
    capability to `folder`, and return the paths. `processes`: 0 for one per core."""
    written = []
    count = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, get_context("spawn"), _leave_out_lines) as pool:
        for capability in capabilities:
            target = TARGETS[capability]
            work = [(one, capability) for one in signatures if can_run(one, capability)]
            path = folder / f"kernels_{target}.zip"
            compiler = f"triton {triton.__version__}"
            write_archive(path, target, compiler, pool.map(_compiled, work, chunksize=2))
            written.append(path)
    return written


def _leave_out_lines() -> None:
    """Compile without line information, which is half of a cubin and names folders of the build
    machine."""
    triton.knobs.compilation.disable_line_info = True


def _compiled(work: tuple[Signature, int]) -> tuple[Cubin, bytes]:
    signature, capability = work
    compiled = compile_for(signature, capability)
    image: bytes = compiled.asm["cubin"]
    metadata = compiled.metadata
    assert metadata.target.arch == capability
    assert not metadata.global_scratch_size, f"{signature.kernel} needs scratch memory"
    assert not getattr(metadata, "profile_scratch_size", 0)
    assert metadata.num_ctas == 1, f"{signature.kernel} is a cluster"
    assert metadata.num_warps == signature.num_warps, (
        f"{signature.kernel} has another number of warps"
    )
    kernel = getattr(import_module(signature.module), signature.kernel)
    offsets = parameters(image, metadata.name)
    cubin = Cubin(
        signature=signature,
        source=source_hash(kernel),
        entry=metadata.name,
        num_warps=metadata.num_warps,
        shared_bytes=metadata.shared,
        scratch_pointers=len(offsets) - len(signature.types),
        file=file_of(image),
    )
    assert offsets == expected(cubin), f"{signature.kernel}: parameters are at {offsets}"
    return cubin, image


def expected(cubin: Cubin) -> list[tuple[int, int]]:
    """Return (offset, size) in bytes of each parameter, as `Cubin.layout` packs the parameters."""
    types = (*cubin.signature.types, *["*i8"] * cubin.scratch_pointers)
    sizes = [struct.calcsize(layout([written])) for written in types]
    ends = [struct.calcsize(layout(types[: index + 1])) for index in range(len(types))]
    return [(end - size, size) for end, size in zip(ends, sizes, strict=True)]


def main(arguments: list[str] | None = None) -> None:
    """Compile the kernels, write the archives and print the size of each."""
    parser = argparse.ArgumentParser(description="Compile and package the Triton kernels")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--targets", default=",".join(map(str, TARGETS)))
    parser.add_argument("--processes", type=int, default=0, help="0: one per core")
    given = parser.parse_args(arguments)
    capabilities = [int(target) for target in given.targets.split(",")]
    given.folder.mkdir(parents=True, exist_ok=True)
    signatures = packaged_signatures()
    for capability in capabilities:  # one at a time, to write the first archive early
        for path in build(given.folder, signatures, [capability], given.processes):
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    # Importing the package registers every implementation.
    import penstock.kernels.triton  # noqa: F401

    main()
