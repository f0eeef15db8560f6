"""CPU cost of launching a step kernel by kernel, as for prefill and mixed steps.

    python -m bench.lab.launch_overhead [--layers 36] [--rounds 200]

A small decoder runs steps on CPU tensors, through the launchers of a GPU: packaged kernels (started
by the CUDA library) and the CUDA library's functions. The driver and the library's functions are
stubs that do nothing. So this is the time from the model to the driver, without the driver itself,
and with torch's CPU allocator instead of the device's. Reports the least CPU time of the rounds: of
a step, and of its launches repeated alone. Needs a C++ compiler, but neither a GPU nor Triton.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench.device.model_shapes import SHAPES, Shape, write_checkpoint
from penstock.kernels.cuda import CudaOps, library, open_library
from penstock.kernels.cuda.launcher import DriverLauncher
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.compile import launch as launching
from penstock.kernels.triton.compile.archive import Archive, Cubin
from penstock.kernels.triton.compile.packaged_kernels import PackagedKernels
from penstock.kernels.triton.compile.packaged_models import Sizes
from penstock.kernels.triton.compile.packaged_signatures import packaged_signatures
from penstock.kernels.triton.compile.signature import source_hash
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.gpu.model import DeviceModel

ROWS, CONTEXT, BLOCK = 8, 4096, 16
SOURCES = Path(__file__).parents[2] / "csrc"
DRIVER = """
#define NOTHING(name) extern "C" int name(...) { return 0; }
NOTHING(cuModuleGetFunction) NOTHING(cuFuncSetAttribute) NOTHING(cuFuncSetCacheConfig)
NOTHING(cuLaunchKernel) NOTHING(cuCtxSetCurrent) NOTHING(cuGetErrorName)
extern "C" int cuModuleLoadData(void** module, const void*) { return *module = module, 0; }
extern "C" int cuCtxGetCurrent(void** context) { return *context = context, 0; }
extern "C" int cuDevicePrimaryCtxRetain(void** context, int) { return *context = context, 0; }
"""


class Unloaded(Archive):
    """An archive of kernels that are never run, with the facts that a launch needs."""

    target = "nothing"

    def __init__(self, sizes: Sizes) -> None:
        self.cubins = [
            Cubin(one, _source(one.module, one.kernel), one.kernel, one.num_warps, 0, 2, "")
            for one in packaged_signatures([sizes])
        ]

    def image(self, cubin: Cubin) -> bytes:
        return b"nothing"


def _source(module: str, kernel: str) -> str:
    found = __import__(module, fromlist=[kernel])
    return source_hash(getattr(found, kernel))


def _built(folder: Path, name: str, source: str | Path, *options: str) -> Path:
    path = folder / f"{name}.so"
    if isinstance(source, str):
        (folder / f"{name}.cc").write_text(source)
        source = folder / f"{name}.cc"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-o", str(path), f"-I{SOURCES}"]
    subprocess.run([*command, str(source), *options], check=True)
    return path


def _library(folder: Path) -> Path:
    """Build a stub with the functions of the CUDA library, which do nothing."""
    names = [f"penstock_cuda_{name}" for name in library._SIGNATURES]
    text = "".join(f'extern "C" int {name}(...) {{ return 0; }}\n' for name in names)
    text += f'extern "C" int penstock_cuda_abi() {{ return {library.ABI}; }}\n'
    text += 'extern "C" const char* penstock_cuda_error(int) { return ""; }\n'
    return _built(folder, "library", text + 'extern "C" int penstock_cuda_runtime() { return 0; }')


def _ops(kind: str, folder: Path) -> TorchOps:
    """Return the ops that serve on compute capability 9.0, on CPU tensors."""
    if kind == "library":
        opened = open_library(_library(folder))
        ops: TritonOps = CudaOps("cpu", torch.bfloat16, opened, {})
        # If Triton interprets, a CPU is served like a GPU.
        machine, names = Machine("cpu", interpreted=True), {"cuda", "triton", "reference"}
    else:
        ops = TritonOps("cpu", torch.bfloat16, products="invariant")
        machine, names = Machine("cuda", 90), {"triton", "reference"}
    ops.registry = KernelRegistry(all_ops(), machine, frozenset(names))
    return ops


def _inputs(tokens: int) -> StepInputs[torch.Tensor]:
    def ints(*extents: int) -> torch.Tensor:
        return torch.zeros(extents, dtype=torch.int32)

    one = ints(tokens)
    contexts = ints(ROWS)
    return StepInputs(
        one, one, one, ints(ROWS + 1), contexts, ints(ROWS, CONTEXT // BLOCK), contexts
    )


def _least_us(call: Callable[[], Any], rounds: int) -> float:
    """Return the least CPU time of a call, in which other load on the machine does not count."""
    least = float("inf")
    for _ in range(rounds):
        began = time.thread_time_ns()
        call()
        least = min(least, time.thread_time_ns() - began)
    return least / 1e3


def measure(kind: str, shape: Shape, folder: Path, checkpoint: Path, rounds: int) -> None:
    model = load_model(files_at(checkpoint, checkpoint.name), "auto")
    cache = CacheShape(64, BLOCK, model.spec.caches, 2, shares_latents=True)
    with _copying():
        placed = DeviceModel(
            model,
            _ops(kind, folder),
            cache,
            torch.bfloat16,
            max_rows=ROWS,
            max_model_len=CONTEXT,
        )
    inputs = _inputs(4 * ROWS)
    with torch.inference_mode():
        launches, called = _launches(lambda: placed.logits(inputs, one_token=False))
        step_us = _least_us(lambda: placed.logits(inputs, one_token=False), rounds)

        def again() -> None:
            for launch in launches:
                launch()

        alone_us = _least_us(again, rounds)
    print(
        f"{kind:<10} {len(launches)} launches per step, {called} of the library: "
        f"{step_us:.0f} us per step, {step_us / len(launches):.2f} us per launch, of which "
        f"{alone_us / len(launches):.2f} us from the wrapper to the driver"
    )


@contextmanager
def _copying() -> Iterator[None]:
    """Copy weights, as for a device: in a file they are not aligned."""
    mapped = torch.from_numpy
    torch.from_numpy = lambda ndarray: mapped(ndarray).clone()
    try:
        yield
    finally:
        torch.from_numpy = mapped


def _launches(step: Callable[[], Any]) -> tuple[list[Callable[[], Any]], int]:
    """Record the launches of a step, to be repeated, and count those of the library."""
    made: list[Callable[[], Any]] = []
    start, call = PackagedKernels.start, library.Library.call
    counts = [0]

    def noted_start(self: PackagedKernels, *given: Any) -> str | None:
        made.append(lambda: start(self, *given))
        return start(self, *given)

    def noted_call(self: library.Library, *given: Any) -> None:
        counts[0] += 1
        made.append(lambda: call(self, *given))
        call(self, *given)

    with (
        patch.object(PackagedKernels, "start", noted_start),
        patch.object(library.Library, "call", noted_call),
    ):
        step()
    return made, counts[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = replace(SHAPES["qwen3-8b"].small(), width=128, head_dim=64, ff=128, layers=given.layers)
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    sizes = Sizes(shape.width, heads, shape.ff, shape.vocab, head_norm=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = write_checkpoint(shape, folder / "model", "cpu")
        modules = _built(folder, "modules", SOURCES / "cuda" / "modules.cc", "-ldl")
        launcher = DriverLauncher(modules, 0, str(_built(folder, "driver", DRIVER)))
        packaged = PackagedKernels(Unloaded(sizes), launcher, lambda: 0)
        launching.serve_packaged(packaged)
        for kind in ("packaged", "library"):
            measure(kind, shape, folder, checkpoint, given.rounds)
        assert packaged.missing == 0, packaged.report()


if __name__ == "__main__":
    main()
