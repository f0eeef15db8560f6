"""`Signature`: all that a compiled kernel depends on, without tensors and without Triton.

Integers are i32 and never specialised: neither 1 nor a multiple of 16 makes another kernel. Tensors
are aligned to 16 bytes, which the launcher checks. Everything else that matters is a constant.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Constant: TypeAlias = "int | bool | str"

POINTERS = {
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

# Stated, because the default changes between releases of Triton, and with it the bits.
OPTIONS = {"enable_fp_fusion": True}


@dataclass(frozen=True, slots=True)
class Signature:
    """The compilation of a kernel. `module`, `kernel`: its source. `types`: of the run-time
    parameters, in order. `constants`: the others, by name, sorted. `num_warps`: of a program;
    `num_stages`: how deep its loops are pipelined."""

    module: str
    kernel: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int


def type_of(argument: Any) -> str:
    """Return the type of a run-time argument: a tensor, a float or an integer."""
    if isinstance(argument, torch.Tensor):
        return POINTERS[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def source_hash(kernel: Any) -> str:
    """Hash the kernel's source, that of all kernels it calls, and the numbers it reads: the hash is
    the same with any Triton, and without."""
    seen: dict[str, str] = {}
    _gather(kernel, seen)
    text = "\n".join(f"{name}\n{source}" for name, source in sorted(seen.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _gather(kernel: Any, seen: dict[str, str]) -> None:
    fn = kernel.fn
    if fn.__qualname__ in seen:
        return
    seen[fn.__qualname__] = inspect.getsource(fn)
    for name in fn.__code__.co_names:
        used = fn.__globals__.get(name)
        if hasattr(used, "fn") and hasattr(used, "arg_names"):
            _gather(used, seen)
        elif isinstance(used, int | float | str):
            seen[name] = repr(used)
