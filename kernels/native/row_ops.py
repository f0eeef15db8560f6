"""Generates methods for the ops whose native kernel takes only tensors and real numbers.

A method is generated from the signature of the kernel in the extension module
(`_native.signatures`), so such an op needs no code here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock import _native
from penstock.kernels.native.backend import CallBackend
from penstock.kernels.signature import Operand, Signature, parse_signature

_Make = Callable[[CallBackend[Any], tuple[Any, ...]], Any]


def row_ops() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the name and the method of each op whose results are float32 tensors [rows, columns]
    with the rows and the columns of operands. A method takes the tensors that the kernel reads,
    then the kernel's real numbers. It returns a tensor, or a tuple of several tensors."""
    for kernel, text in _native.signatures().items():
        signature = parse_signature(text)
        results = _results(signature)
        if results:
            yield kernel, _method(kernel, _num_read(signature), results)


def _method(kernel: str, num_tensors: int, results: list[_Make]) -> Callable[..., Any]:
    def op(self: Any, *operands: Any) -> Any:
        tensors = operands[:num_tensors]
        made = [make(self._backend, tensors) for make in results]
        self._backend.call(kernel, [*tensors, *made], reals=operands[num_tensors:])
        return made[0] if len(made) == 1 else tuple(made)

    op.__name__, op.__qualname__ = kernel, f"BackendOps.{kernel}"
    op.__doc__ = f"See `Ops.{kernel}`."
    return op


def _num_read(signature: Signature) -> int:
    return sum(bool(operand.dims) and operand.access == "read" for operand in signature)


def _results(signature: Signature) -> list[_Make]:
    """Return one function per result that creates the result; an empty list if the kernel has
    operands or results of other types."""
    num_read = _num_read(signature)
    read, rest = signature[:num_read], signature[num_read:]
    written = [operand for operand in rest if operand.access == "write"]
    makes = [make for operand in written if (make := _make(operand, read)) is not None]
    only_reals = all(operand.kind == "real" for operand in rest[len(written) :])
    return makes if only_reals and len(makes) == len(written) else []


def _make(result: Operand, read: Signature) -> _Make | None:
    """Return a function that creates the tensor `result`, or None if no operands determine its rows
    and columns."""
    if result.kind != "float32" or len(result.dims) != 2:
        return None
    rows, columns = result.dims
    row_sources = [i for i, one in enumerate(read) if one.dims[0] in (rows, f"{rows}+1")]
    column_sources = [
        i for i, one in enumerate(read) if one.dims[1:] in ((columns,), (f"2*{columns}",))
    ]
    if not row_sources or not column_sources:
        return None
    source, like = row_sources[0], column_sources[0]
    create = "empty" if read[source].dims[0] == rows else "between"
    divisor = 1 if read[like].dims[1] == columns else 2

    def make(backend: CallBackend[Any], tensors: tuple[Any, ...]) -> Any:
        return getattr(backend, create)(tensors[source], int(tensors[like].shape[1]) // divisor)

    return make
