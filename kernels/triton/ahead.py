"""Compilation ahead of time: every kernel, as the wrappers launch it, for named targets.

The wrappers run over the registry's cases while launches are only noted; each distinct signature
is then compiled for the last target, and for the others once for each combination of types. No GPU
is needed. `python -m penstock.kernels.triton.ahead [OP ...]` prints a JSON
line for each kernel, signature and target: what was compiled and the bytes of the cubin. With
`--each-kernel-once` only one signature of each kernel is compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.kernels.op import KernelTable, Machine, Op
from penstock.kernels.ops import all_ops
from penstock.kernels.served import as_served
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton.launch import OPTIONS, Launch, interpreted, noting

# Capability -> name. For capability 90 Triton itself targets sm_90a.
TARGETS = {80: "sm_80", 90: "sm_90a"}
_LAST = max(TARGETS)
ACTIVATIONS = (torch.float32, torch.bfloat16)

_QUICK = "--each-kernel-once"

# Sizes of a model that shape no tile: one value stands for all.
_EXTENTS = frozenset({"ROWS", "WIDTH", "VOCABULARY"})

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}


def signatures(ops: Iterable[Op]) -> list[Launch]:
    """One launch of every distinct signature that the ops' cases lead to."""
    table = KernelTable(all_ops(), Machine("cuda", _LAST), frozenset({"triton", "reference"}))
    distinct: dict[str, Launch] = {}
    for op in ops:
        for case in op.cases:
            for dtype in ACTIVATIONS:
                inputs = as_served(case.draw(0), None if dtype == torch.float32 else dtype)
                with noting() as launches:
                    op.invoke(TorchOps(table, "cpu", dtype), inputs)
                for launch in launches:
                    # Tiles do not depend on the type: all of them once, the other types once.
                    key = _types_key(launch) if dtype != ACTIVATIONS[0] else _key(launch)
                    distinct.setdefault(key, launch)
    return list(distinct.values())


def _types(launch: Launch) -> dict[str, str]:
    names = launch.kernel.arg_names
    types = {
        name: _POINTERS[argument.dtype]
        if isinstance(argument, torch.Tensor)
        else ("fp32" if isinstance(argument, float) else "i32")
        for name, argument in zip(names, launch.arguments, strict=False)
    }
    return {name: types.get(name, "constexpr") for name in names}


def _types_key(launch: Launch) -> str:
    return f"{launch.kernel.__name__} {_types(launch)}"


def _key(launch: Launch) -> str:
    """What a compilation depends on, but for plain extents."""
    constants = {name: item for name, item in launch.constants.items() if name not in _EXTENTS}
    return f"{_types_key(launch)} {constants} {launch.num_warps} {launch.num_stages}"


def compile_for(launch: Launch, capability: int) -> Any:
    """The compiled kernel; `.asm["cubin"]` and `.asm["ptx"]` hold the results."""
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, argument in enumerate(launch.arguments)
        if isinstance(argument, torch.Tensor)
    }
    source = ASTSource(launch.kernel, _types(launch), launch.constants, aligned)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, **OPTIONS}
    return triton.compile(source, target=target, options=options)


def compile_all(launches: Iterable[Launch]) -> Iterator[dict[str, Any]]:
    """Compile for the targets; yields a record of each result."""
    seen: set[str] = set()
    for launch in launches:
        types = _types_key(launch)
        targets = TARGETS if types not in seen else {_LAST: TARGETS[_LAST]}
        seen.add(types)
        for capability, name in targets.items():
            compiled = compile_for(launch, capability)
            yield {
                "kernel": launch.kernel.__name__,
                "constants": launch.constants,
                "target": name,
                "ptx_target": compiled.asm["ptx"].split(".target ", 1)[1].split()[0],
                "cubin_bytes": len(compiled.asm["cubin"]),
                "shared_bytes": compiled.metadata.shared,
            }


def one_of_each(launches: Iterable[Launch]) -> list[Launch]:
    """The first launch of each kernel: the quick check that everything still compiles."""
    return list({launch.kernel.__name__: launch for launch in reversed(list(launches))}.values())


def main(arguments: list[str]) -> None:
    """Print the records of the named ops, of all without names."""
    assert not interpreted(), "the interpreter has replaced the compiler"
    names = [argument for argument in arguments if argument != _QUICK]
    chosen = [op for op in all_ops() if "triton" in op.implementations]
    launches = signatures(op for op in chosen if not names or op.name in names)
    for record in compile_all(one_of_each(launches) if _QUICK in arguments else launches):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    # The package registers every implementation on import.
    import penstock.kernels.triton  # noqa: F401

    main(sys.argv[1:])
