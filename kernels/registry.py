"""Ops, their implementations, and the choice of the implementation that serves.

An `Op` is its reference: a short function over torch tensors whose result in float64 is the truth
that every implementation is tested against. Its signature, cases and tolerances are declared beside
it. Implementations register with an op under a name; the op declares the order in which they are
preferred. A `KernelRegistry` is built once, at engine start: the first eligible implementation in
that order serves. There is no ranking and no fallback at call time.
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
    """The facts that eligibility may depend on. `capability`: CUDA compute capability times 10 (80,
    90), 0 on a CPU. `interpreted`: Triton kernels run in its interpreter, on CPU tensors."""

    device: Literal["cpu", "cuda"]
    capability: int = 0
    interpreted: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work that a case needs: bytes read and written once, and arithmetic operations (a
    multiply-add counts two). The roofline of a case follows from it."""

    moved_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs. `make_inputs(seed)` returns the op's named inputs as CPU torch tensors,
    activations in float32; equal seeds give equal inputs. `kind` selects the tolerance."""

    name: str
    kind: str
    make_inputs: Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|result - reference| <= absolute + relative * |reference|, element by element."""

    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of one op.

    `call` has the signature of the op's reference. `why_not(machine)` returns the reason why it
    cannot serve there, or None. `pack(weight, device, dtype)` prepares a weight for `call`, if the
    op has one. `invariant_kinds`: the kinds of case in which the bits of a row must not depend on
    the rest of the batch.
    """

    name: str
    call: Callable[..., Any]
    why_not: Callable[[Machine], str | None]
    pack: Callable[..., Any] | None = None
    invariant_kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Op:
    """One operation: signature, meaning, cases and the order of its implementations.

    `signature`: the operands of the reference in order, then its results, as text (see
    `kernels.signature`); native kernels are checked against it. `native_kernels`: their names, if
    they are not that of the op alone.

    `tolerance`: by kind of case. `<kind>-in-bf16` is that of the ISAs that multiply operands as
    bf16, in pairs (and weigh products of 4-bit integers in pairs of int16), `<kind>-by-tiles` that
    of the ISAs that multiply matrix tiles; both only if they are wider.

    `custom_invoke`: see `invoke`. `alone(inputs, index)` returns the inputs of token or row `index`
    alone, whose first result must equal row `index` of the whole; None if rows have no meaning.
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
        """Compute a case through any `Ops` over torch tensors; return all that the op writes: its
        results, or its first operand if it has none."""
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
    """The implementation of each op that serves, chosen on construction.

    `names`: the implementations to consider, None for all; "reference" alone gives the references.
    Raises LookupError, with every reason, if no implementation of an op can serve.
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
        """Return one line per op: which implementation serves, and why the others do not."""
        return [
            f"{name}: {serving.name}"
            + "".join(f"; {other}: {reason}" for other, reason in self._passed_over[name])
            for name, serving in self._serving.items()
        ]
