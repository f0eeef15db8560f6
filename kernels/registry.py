"""Ops, their implementations, and the choice of an implementation for each op.

An `Op` has a reference: a short function over torch tensors, whose result in float64 is the truth
for the tests of every implementation. The module of the op also declares its signature, test cases,
tolerances and the order in which implementations are preferred. Implementations are registered with
the op under a name. A `KernelRegistry` is built once, at engine start, and chooses the first
implementation in that order that works on the machine. There is no ranking by speed, and no
fallback at call time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from penstock.kernels.signature import Operand, Signature, parse_signature

Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a machine that decide which implementations work.

    `device`: "cpu" or "cuda".
    `capability`: CUDA compute capability times 10 (80, 90); 0 on a CPU.
    `interpreted`: whether Triton kernels run in Triton's interpreter, on CPU tensors.
    """

    device: Literal["cpu", "cuda"]
    capability: int = 0
    interpreted: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work that a case needs; the roofline of the case follows from it.

    `moved_bytes`: bytes that must be read or written, counted once.
    `operations`: arithmetic operations; a multiply-add counts as two.
    """

    moved_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs of an op.

    `kind`: selects the tolerance.
    `make_inputs`: takes a seed and returns the op's inputs by name, as CPU torch tensors with
        activations in float32. Equal seeds give equal inputs.
    """

    name: str
    kind: str
    make_inputs: Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest error of each element: |result - reference| <= absolute + relative *
    |reference|."""

    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of one op.

    `call`: computes the op; has the signature of the op's reference.
    `why_not`: takes a machine and returns the reason why the implementation does not work there, or
        None.
    `pack`: takes a weight, a device and a dtype, and returns the weight prepared for `call`. None
        if the op has no weight to prepare.
    `invariant_kinds`: kinds of case in which the bits of a row must not depend on the rest of the
        batch.
    """

    name: str
    call: Callable[..., Any]
    why_not: Callable[[Machine], str | None]
    pack: Callable[..., Any] | None = None
    invariant_kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Op:
    """One tensor operation.

    `signature`: the operands of the reference in order, then its results, as text (see
        `kernels.signature`). Native kernels are checked against this signature.
    `cases`, `benchmarks`: inputs for tests, and for benchmarks.
    `tolerance`: kind of case -> tolerance. `<kind>-in-bf16` is for ISAs that multiply operands as
        bf16, in pairs (and products of 4-bit integers in pairs of int16). `<kind>-as-int16` is for
        ISAs that multiply 16-bit floats as int16, `<kind>-by-tiles` for ISAs that multiply matrix
        tiles. Each exists only if it differs from the tolerance of
        `<kind>`.
    `order`: names of implementations, the preferred one first.
    `alone`: takes inputs and an index, and returns the inputs of token or row `index` alone. The
        first result for these inputs must equal row `index` of the result for all inputs. None if
        the op has no such rows.
    `custom_invoke`: see `invoke`.
    `native_kernels`: names of the native kernels, if they differ from the name of the op.
    """

    name: str
    signature: str
    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    benchmarks: tuple[Case, ...]
    tolerance: Mapping[str, Tolerance]
    cost: Callable[[Inputs], Cost]
    order: tuple[str, ...]
    pack: Callable[..., Any] | None = None
    alone: Callable[[Inputs, int], dict[str, Any]] | None = None
    custom_invoke: Callable[[Any, Inputs], tuple[Any, ...]] | None = None
    native_kernels: tuple[str, ...] = ()
    implementations: dict[str, Impl] = field(default_factory=dict)

    def __post_init__(self) -> None:
        serves_anywhere = Impl("reference", self.reference, lambda machine: None, self.pack)
        self.implementations["reference"] = serves_anywhere

    @cached_property
    def operands(self) -> Signature:
        """The operands of the reference, in order."""
        return tuple(one for one in parse_signature(self.signature) if one.access != "write")

    @cached_property
    def results(self) -> Signature:
        """The tensors that the reference returns, in order."""
        return tuple(one for one in parse_signature(self.signature) if one.access == "write")

    def invoke(self, ops: Any, inputs: Inputs) -> tuple[Any, ...]:
        """Compute a case with any `Ops` over torch tensors. Return the results of the op. An op
        without results modifies its first operand in place, which is then returned."""
        if self.custom_invoke is not None:
            return self.custom_invoke(ops, inputs)
        operands = (self._operand(ops, operand, inputs) for operand in self.operands)
        result = getattr(ops, self.name)(*operands)
        if result is None:
            return (inputs[self.operands[0].name],)
        return result if isinstance(result, tuple) else (result,)

    def _operand(self, ops: Any, operand: Operand, inputs: Inputs) -> Any:
        value = inputs[operand.name]
        return getattr(ops, f"pack_{self.name}")(value) if operand.kind == "packed" else value

    def register(self, implementation: Impl) -> None:
        """Add an implementation. Its name must be in `order`."""
        assert implementation.name in self.order, f"{self.name}: {implementation.name} has no rank"
        self.implementations[implementation.name] = implementation


class KernelRegistry:
    """Chooses an implementation for each op, on construction.

    `names`: the implementations to consider; None: all. "reference" alone selects the references.

    Raises LookupError, with all reasons, if no implementation of an op works on the machine.
    """

    def __init__(
        self, ops: Iterable[Op], machine: Machine, names: frozenset[str] | None = None
    ) -> None:
        self._serving: dict[str, Impl] = {}
        self._passed_over: dict[str, list[tuple[str, str]]] = {}
        for op in ops:
            self._resolve(op, machine, names)

    def _resolve(self, op: Op, machine: Machine, names: frozenset[str] | None) -> None:
        passed_over = self._passed_over[op.name] = []
        for name in op.order:
            implementation = op.implementations.get(name)
            if op.name in self._serving:
                reason: str | None = "a preferred one serves"
            elif names is not None and name not in names:
                reason = "not asked for"
            elif implementation is None:
                reason = "not registered"
            else:
                reason = implementation.why_not(machine)
                if reason is None:
                    self._serving[op.name] = implementation
            if reason is not None:
                passed_over.append((name, reason))
        if op.name not in self._serving:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over)
            raise LookupError(f"no implementation of {op.name} can serve ({reasons})")

    def __getitem__(self, name: str) -> Impl:
        return self._serving[name]

    def explain(self) -> list[str]:
        """Return one line per op: the implementation in use, and why the other implementations are
        not."""
        return [
            f"{name}: {serving.name}"
            + "".join(f"; {other}: {reason}" for other, reason in self._passed_over[name])
            for name, serving in self._serving.items()
        ]
