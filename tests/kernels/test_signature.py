"""Signatures of ops against their references, their cases and the native kernels."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest
import torch

from penstock import _native
from penstock.kernels.ops import all_ops
from penstock.kernels.ops_interface import Ops
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.registry import Op
from penstock.kernels.signature import (
    NUMBERS,
    STRUCTS,
    Operand,
    flattened,
    parse_signature,
)

OPS = [pytest.param(op, id=op.name) for op in all_ops()]
NATIVE_OPS = {op.name: op for op in all_ops() if "native" in op.order}
KERNELS = {name: parse_signature(text) for name, text in _native.signatures().items()}
OP_OF = {kernel: op for op in NATIVE_OPS.values() for kernel in op.native_kernels or (op.name,)}

# Operands of native kernels that no op has: the pool's threads; and the mask of each row plus 1,
# derived from `mask_of`.
NATIVE_ONLY = {"threads", "mask"}
SAME_BITS = {"uint64": "int64", "uint32": "int32", "float": "float32"}


def test_text_that_is_no_signature_is_refused() -> None:
    with pytest.raises(ValueError, match="not an operand: 'x'"):
        parse_signature("x")


def test_struct_is_replaced_by_its_fields() -> None:
    fields = flattened(parse_signature("q float [T, H*D]; heads Heads"))
    assert [field.name for field in fields] == ["q", "H", "K", "D"]


@pytest.mark.parametrize("op", OPS)
def test_operands_are_the_parameters_of_the_reference(op: Op) -> None:
    parameters = inspect.signature(op.reference).parameters
    assert [operand.name for operand in op.operands] == list(parameters)
    optional = [operand.name for operand in op.operands if operand.access == "optional"]
    assert set(optional) >= {name for name, one in parameters.items() if one.default is None}


@pytest.mark.parametrize("op", OPS)
def test_interface_and_dispatch_have_the_operands_of_the_op(op: Op) -> None:
    assert callable(getattr(ReferenceOps, op.name))
    if hasattr(Ops, op.name):
        _, *parameters = inspect.signature(getattr(Ops, op.name)).parameters
        assert parameters == [operand.name for operand in op.operands]


@pytest.mark.parametrize("kernel", KERNELS)
def test_native_kernel_has_the_operands_of_its_op(kernel: str) -> None:
    """Each tensor that the kernel reads and each number is an operand of the op, or was written by
    another kernel of the same op; each result of the op that the kernel writes has its dimensions
    and type. Other tensors that the kernel writes are scratch memory."""
    op = OP_OF[kernel]
    results = {operand.name: operand for operand in op.results}
    operands = {
        operand.name: operand
        for operand in flattened(op.operands)
        if operand.kind != "AdapterSlots"
    }
    scratch = {
        operand.name: operand
        for other in op.native_kernels
        for operand in KERNELS[other]
        if operand.access == "write" and operand.name not in results
    }
    for operand in KERNELS[kernel]:
        known = results if operand.access == "write" else {**scratch, **operands}
        declared = known.get(operand.name)
        if declared is None:
            assert operand.access == "write" or operand.name in NATIVE_ONLY, operand
            continue
        assert operand.dims == declared.dims, operand
        assert operand.kind == SAME_BITS.get(declared.kind, declared.kind), operand


def test_every_native_kernel_belongs_to_an_op_and_every_native_op_has_a_kernel() -> None:
    assert set(OP_OF) == set(KERNELS)


def test_every_result_of_a_native_op_is_written() -> None:
    for op in NATIVE_OPS.values():
        written = {
            operand.name
            for kernel in op.native_kernels or (op.name,)
            for operand in KERNELS[kernel]
            if operand.access == "write"
        }
        assert {operand.name for operand in op.results} <= written, op.name


def values_of(operand: Operand, value: Any) -> Iterator[tuple[Operand, Any]]:
    """Yield the operand and its value; for a struct, its fields that are not None."""
    if value is None:
        return
    if isinstance(value, tuple):
        yield from zip(STRUCTS[operand.kind], value, strict=True)
    elif operand.kind in STRUCTS:
        for field in STRUCTS[operand.kind]:
            if getattr(value, field.name, None) is not None:
                yield field, getattr(value, field.name)
    else:
        yield operand, value


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor or of weights; None for a struct whose shapes no signature
    states."""
    if hasattr(value, "shape"):
        return tuple(value.shape)
    assert is_dataclass(value), value
    return None


def evaluated(dim: str, sizes: dict[str, int]) -> int:
    """Return the value of a sum of products of names and numbers."""
    return sum(
        math.prod(int(factor) if factor.isdigit() else sizes[factor] for factor in term.split("*"))
        for term in dim.split("+")
    )


@pytest.mark.parametrize(
    ("op", "number"),
    [
        pytest.param(op, number, id=f"{op.name}-{case.name}")
        for op in all_ops()
        for number, case in enumerate(op.cases)
        if number < 3 or number == len(op.cases) - 1
    ],
)
def test_inputs_of_cases_have_the_dimensions_of_the_signature(op: Op, number: int) -> None:
    inputs = op.cases[number].make_inputs(0)
    sizes: dict[str, int] = {}
    later = []
    for operand in op.operands:
        if operand.kind == "AdapterSlots" or operand.name not in inputs:
            assert op.name == "lora", operand  # its cases make the slots
            continue
        for part, value in values_of(operand, inputs[operand.name]):
            if part.kind in NUMBERS:
                sizes[part.name] = value
                continue
            shape = shape_of(value)
            if shape is None:
                continue
            assert len(shape) == len(part.dims), part
            if isinstance(value, torch.Tensor):
                check_dtype(part, value)
            later += zip([part.name] * len(shape), part.dims, shape, strict=True)
    for _, dim, size in later:
        if dim.isidentifier():
            sizes.setdefault(dim, size)
    for name, dim, size in later:
        if set(re.findall(r"[A-Za-z_]\w*", dim)) <= set(sizes):
            assert evaluated(dim, sizes) == size, f"{name}: {dim}"


def check_dtype(operand: Operand, tensor: torch.Tensor) -> None:
    kinds = SAME_BITS.get(operand.kind, operand.kind).split("|")
    assert str(tensor.dtype).removeprefix("torch.") in kinds, operand
