"""`Signature`: everything on which a compiled kernel depends, without tensors and without Triton.

Integer arguments are i32 and never specialised: values such as 1 and multiples of 16 use the same
kernel as all other values. Tensors are aligned to 16 bytes, which the launcher checks. Everything
else that matters is a constant.
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

# Set explicitly: the default differs between releases of Triton and affects the bits of results.
OPTIONS = {"enable_fp_fusion": True}


@dataclass(frozen=True, slots=True)
class Signature:
    """Identifies the compilation of a kernel.

    `module`, `kernel`: module and name of the kernel's function.
    `types`: types of the run-time parameters, in order.
    `constants`: (name, value) of the compile-time parameters, sorted.
    `num_warps`: warps of a program.
    `num_stages`: depth to which the kernel's loops are pipelined.
    """

    module: str
    kernel: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int


def type_of(argument: Any) -> str:
    """Return Triton's name for the type of a run-time argument: a tensor, a float or an integer."""
    if isinstance(argument, torch.Tensor):
        return POINTERS[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def source_hash(kernel: Any) -> str:
    """Return a hash of the sources of the kernel and of all kernels that it calls, and of the
    global constants that they read. The hash is the same with every release of Triton, and without
    Triton."""
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
