"""Compiles every kernel ahead of time, as its wrapper launches it, for the GPUs in `TARGETS`.

The signatures to compile are recorded, not listed by hand. To *check* that kernels compile, the
wrappers run over the cases of their ops while launches are only recorded (`signatures_of_cases`): a
new kernel is checked as soon as its op has cases. To *package* kernels, the wrappers run over the
sizes of models (`packaged_signatures`). `compile_all` compiles each distinct `Signature` once, in
several processes.

Needs no GPU. `python -m penstock.kernels.triton.compile.ahead_of_time [OP ...]` prints a JSON line
per signature and target with the name of the kernel and the bytes of its cubin.
`--each-kernel-once` compiles only one signature of each kernel.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.kernels.cases.gpu_layout import as_gpu_inputs
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine, Op
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton.compile.launch import interpreted, record_launches
from penstock.kernels.triton.compile.signature import OPTIONS, Signature
from penstock.kernels.triton.linear_choice import FLOAT8_CAPABILITY

# Capability times 10 -> name of the target. Triton compiles sm_90a for capability 90.
TARGETS = {80: "sm_80", 90: "sm_90a"}
_LAST = max(TARGETS)

# Servers use the first type: its kernels are compiled with every tile. Tiles do not depend on the
# type, so kernels of the second type are compiled once per combination of argument types. (A
# float32 product takes 20 times as long to compile.)
ACTIVATIONS = (torch.bfloat16, torch.float32)

_QUICK = "--each-kernel-once"

# Constants that hold sizes of a model and do not affect tiles: only one value of each is compiled.
_EXTENTS = frozenset({"ROWS", "WIDTH", "VOCABULARY", "UNIT"})

Work = tuple[Signature, int]
"""A signature and the compute capability, times 10, to compile it for."""


def signatures_of_cases(ops: Iterable[Op]) -> list[Signature]:
    """Return the distinct signatures that the cases of `ops` launch. Signatures that differ only in
    the constants `_EXTENTS` count as one; with float32 activations, one signature per kernel and
    combination of argument types is kept."""
    table = KernelRegistry(all_ops(), Machine("cuda", _LAST), frozenset({"triton", "reference"}))
    distinct: dict[Any, Signature] = {}
    for op in ops:
        for case in op.cases:
            for dtype in ACTIVATIONS:
                inputs = as_gpu_inputs(
                    case.make_inputs(0), None if dtype == torch.float32 else dtype
                )
                with record_launches() as launches:
                    op.invoke(TorchOps(table, "cpu", dtype), inputs)
                for signature in (launch.signature() for launch in launches):
                    served = dtype == ACTIVATIONS[0]
                    key = _without_extents(signature) if served else _types(signature)
                    distinct.setdefault(key, signature)
    return list({_without_extents(one): one for one in distinct.values()}.values())


def _types(signature: Signature) -> tuple[Any, ...]:
    return signature.kernel, signature.types


def _without_extents(signature: Signature) -> tuple[Any, ...]:
    """Return everything on which the compilation of `signature` depends, except the constants
    `_EXTENTS`."""
    constants = tuple(item for item in signature.constants if item[0] not in _EXTENTS)
    return *_types(signature), constants, signature.num_warps, signature.num_stages


def on_targets(signatures: Iterable[Signature]) -> list[Work]:
    """Return the pairs (signature, capability) to compile: every signature for the newest target,
    and for each older target one signature per kernel and combination of argument types. Targets
    that cannot run a signature are left out."""
    seen: set[tuple[Any, ...]] = set()
    work = []
    for signature in signatures:
        types = _types(signature)
        wanted = [each for each in TARGETS if each == _LAST or types not in seen]
        work += [(signature, each) for each in wanted if can_run(signature, each)]
        seen.add(types)
    return work


def can_run(signature: Signature, capability: int) -> bool:
    """Return whether GPUs of `capability` (times 10) support the argument types of `signature`:
    Triton converts 8-bit floats from capability 8.9 on."""
    return capability >= FLOAT8_CAPABILITY or "*fp8e4nv" not in signature.types


def compile_for(signature: Signature, capability: int) -> Any:
    """Return the kernel of `signature` compiled for `capability` (times 10) by Triton;
    `.asm["cubin"]` and `.asm["ptx"]` hold the code."""
    kernel = getattr(import_module(signature.module), signature.kernel)
    constants = dict(signature.constants)
    types = dict(zip(kernel.arg_names, signature.types, strict=False))
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, written in enumerate(signature.types)
        if written.startswith("*")
    }
    declared = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, declared, constants, aligned)
    options = {
        "num_warps": signature.num_warps,
        "num_stages": signature.num_stages,
        **OPTIONS,
    }
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def compile_all(work: list[Work], processes: int | None = None) -> Iterator[dict[str, Any]]:
    """Compile each signature of `work` and yield a record of each result, in order. `processes`:
    number of processes, None for one per core."""
    count = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        yield from pool.map(_compiled, work)


def _compiled(work: Work) -> dict[str, Any]:
    signature, capability = work
    compiled = compile_for(signature, capability)
    return {
        "kernel": signature.kernel,
        "constants": dict(signature.constants),
        "target": TARGETS[capability],
        "ptx_target": compiled.asm["ptx"].split(".target ", 1)[1].split()[0],
        "cubin_bytes": len(compiled.asm["cubin"]),
        "shared_bytes": compiled.metadata.shared,
    }


def one_of_each(signatures: Iterable[Signature]) -> list[Signature]:
    """Return the first signature of each kernel, for a quick check that all kernels compile."""
    return list({one.kernel: one for one in reversed(list(signatures))}.values())


def main(arguments: list[str]) -> None:
    """Compile the kernels of the ops named in `arguments`, or of all ops, and print a JSON record
    of each."""
    assert not interpreted(), "Triton was imported as the interpreter"
    names = [argument for argument in arguments if argument != _QUICK]
    chosen = [op for op in all_ops() if "triton" in op.implementations]
    signatures = signatures_of_cases(op for op in chosen if not names or op.name in names)
    quick = _QUICK in arguments
    for record in compile_all(on_targets(one_of_each(signatures) if quick else signatures)):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    # Importing the package registers every implementation.
    import penstock.kernels.triton  # noqa: F401

    main(sys.argv[1:])
