"""Compilation ahead of time: every kernel, as the wrappers launch it, for named targets.

No list is written by hand. The signatures to *check* follow from the registry: the wrappers run
over the cases of their ops while launches are only recorded (`signatures_of_cases`), so a new
kernel is checked as soon as its op has cases. The signatures to *package* follow from the sizes of
models (`packaged_signatures`), in the same way. `compile_all` compiles each distinct `Signature`
once, in several processes.

Needs no GPU. `python -m penstock.kernels.triton.compile.ahead_of_time [OP ...]` prints a JSON line
per signature and target: the kernel and the bytes of its cubin. `--each-kernel-once` compiles only
one signature of each kernel.
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

# Capability -> name. For capability 90 Triton itself targets sm_90a.
TARGETS = {80: "sm_80", 90: "sm_90a"}
_LAST = max(TARGETS)

# The first is served, and compiled with every tile. Tiles do not depend on the type: for the other,
# each combination of types is compiled once. (A float32 product takes 20 times as long to compile.)
ACTIVATIONS = (torch.bfloat16, torch.float32)

_QUICK = "--each-kernel-once"

# Sizes of a model that do not affect tiles: one value represents all.
_EXTENTS = frozenset({"ROWS", "WIDTH", "VOCABULARY", "UNIT"})

Work = tuple[Signature, int]
"""A signature and the capability to compile it for."""


def signatures_of_cases(ops: Iterable[Op]) -> list[Signature]:
    """Return one of every distinct signature that the cases of the ops launch."""
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
    """Return all that a compilation depends on, except plain extents."""
    constants = tuple(item for item in signature.constants if item[0] not in _EXTENTS)
    return *_types(signature), constants, signature.num_warps, signature.num_stages


def on_targets(signatures: Iterable[Signature]) -> list[Work]:
    """Yield each signature for the last target, and for the others once per combination of
    types."""
    seen: set[tuple[Any, ...]] = set()
    work = []
    for signature in signatures:
        types = _types(signature)
        wanted = [each for each in TARGETS if each == _LAST or types not in seen]
        work += [(signature, each) for each in wanted if can_run(signature, each)]
        seen.add(types)
    return work


def can_run(signature: Signature, capability: int) -> bool:
    """Return whether the target has the types: Triton converts 8-bit floats from 8.9 on."""
    return capability >= FLOAT8_CAPABILITY or "*fp8e4nv" not in signature.types


def compile_for(signature: Signature, capability: int) -> Any:
    """Compile a kernel; `.asm["cubin"]` and `.asm["ptx"]` hold the results."""
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
    """Compile all, and yield a record of each when it is done. `processes`: None: one per core."""
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
    """Return the first signature of each kernel: the quick check that everything still compiles."""
    return list({one.kernel: one for one in reversed(list(signatures))}.values())


def main(arguments: list[str]) -> None:
    """Print the records of the named ops; of all if there are no names."""
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
