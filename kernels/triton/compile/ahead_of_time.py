"""Compilation ahead of time: every kernel, as the wrappers launch it, for named targets.

Nothing is listed by hand. Which signatures are *proven* follows from the registry: the wrappers run
over the cases of their ops while launches are only noted (`signatures_of_cases`), so a new kernel
is proven as
soon as its op has cases. Which are *packaged* follows from the sizes of models (`shipped`), in the
same way. Both are lists of `Signature`; `compile_all` compiles each distinct one once, in several
processes.

No GPU is needed. `python -m penstock.kernels.triton.compile.ahead_of_time [OP ...]` prints a JSON
line for each
signature and target: what was compiled and the bytes of the cubin. With `--each-kernel-once` only
one signature of each kernel is compiled.
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

# The first is served, and compiled with every tile. Tiles do not depend on the type: of the other
# each combination of types is compiled once. (A float32 product takes 20 times as long to compile.)
ACTIVATIONS = (torch.bfloat16, torch.float32)

_QUICK = "--each-kernel-once"

# Sizes of a model that shape no tile: one value stands for all.
_EXTENTS = frozenset({"ROWS", "WIDTH", "VOCABULARY", "UNIT"})

Work = tuple[Signature, int]
"""A signature and the capability that it is compiled for."""


def signatures_of_cases(ops: Iterable[Op]) -> list[Signature]:
    """One of every distinct signature that the ops' cases lead to."""
    table = KernelRegistry(all_ops(), Machine("cuda", _LAST), frozenset({"triton", "reference"}))
    distinct: dict[Any, Signature] = {}
    for op in ops:
        for case in op.cases:
            for dtype in ACTIVATIONS:
                inputs = as_gpu_inputs(case.draw(0), None if dtype == torch.float32 else dtype)
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
    """What a compilation depends on, but for plain extents."""
    constants = tuple(item for item in signature.constants if item[0] not in _EXTENTS)
    return *_types(signature), constants, signature.num_warps, signature.num_stages


def on_targets(signatures: Iterable[Signature]) -> list[Work]:
    """Each signature for the last target, and for the others once for each combination of types."""
    seen: set[tuple[Any, ...]] = set()
    work = []
    for signature in signatures:
        types = _types(signature)
        wanted = [each for each in TARGETS if each == _LAST or types not in seen]
        work += [(signature, each) for each in wanted if can_run(signature, each)]
        seen.add(types)
    return work


def can_run(signature: Signature, capability: int) -> bool:
    """Whether the target has the types: Triton converts 8-bit floats from 8.9 on."""
    return capability >= FLOAT8_CAPABILITY or "*fp8e4nv" not in signature.types


def compile_for(signature: Signature, capability: int) -> Any:
    """The compiled kernel; `.asm["cubin"]` and `.asm["ptx"]` hold the results."""
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
    """Compile all, and yield a record of each as it is done. `processes`: one a core where it is
    None."""
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
    """The first of each kernel: the quick check that everything still compiles."""
    return list({one.kernel: one for one in reversed(list(signatures))}.values())


def main(arguments: list[str]) -> None:
    """Print the records of the named ops, of all without names."""
    assert not interpreted(), "the interpreter has replaced the compiler"
    names = [argument for argument in arguments if argument != _QUICK]
    chosen = [op for op in all_ops() if "triton" in op.implementations]
    signatures = signatures_of_cases(op for op in chosen if not names or op.name in names)
    quick = _QUICK in arguments
    for record in compile_all(on_targets(one_of_each(signatures) if quick else signatures)):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    # The package registers every implementation on import.
    import penstock.kernels.triton  # noqa: F401

    main(sys.argv[1:])
