"""What an op is, who may compute it, and the one resolution of which implementation does.

An `Op` is its reference body: a short function over torch tensors whose result, in float64, is the
truth that every implementation is tested against. Cases and tolerances are declared beside it.
Implementations register against an op under a name; the op declares in which order they are
preferred. A `KernelRegistry` is built once, at engine start: for each op the first eligible
implementation in declared order serves. There is no ranking and no fall-back at call time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """What eligibility may depend on. `capability` is 80 or 90 on a CUDA device, 0 elsewhere.
    `interpreted`: Triton kernels run in its interpreter, on CPU tensors."""

    device: Literal["cpu", "cuda"]
    capability: int = 0
    interpreted: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """What a case cannot do without: bytes read and written once, and arithmetic operations
    (a multiply-add counts two). The roofline of a case follows from it."""

    moved_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs. `draw(seed)` gives the op's named inputs as CPU torch tensors, float32
    where they are activations; equal seeds give equal inputs. `kind` picks the tolerance."""

    name: str
    kind: str
    draw: Callable[[int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|got - reference| <= absolute + relative * |reference|, element by element."""

    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of one op.

    `call` has the signature of the op's reference body. `why_not(machine)` gives the reason why
    it cannot serve there, or None. `pack(weight, device, dtype)` prepares a weight for `call` where
    the op takes one. `invariant_kinds`: the kinds of case in which a row's bits are claimed not to
    depend on the rest of the batch.
    """

    name: str
    call: Callable[..., Any]
    why_not: Callable[[Machine], str | None]
    pack: Callable[..., Any] | None = None
    invariant_kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Op:
    """One operation: meaning, cases and the order of its implementations.

    `tolerance`: by kind of case; `<kind>-in-bf16` and `<kind>-by-tiles` are those of the native
    levels which multiply operands as bf16, in pairs (and weigh products of 4-bit integers in pairs
    of int16) or by matrix tiles, where they are wider.

    `invoke(ops, inputs)` computes a case through any `Ops` over torch tensors and returns all that
    the op writes, as a tuple. `alone(inputs, index)` gives the inputs of token or row `index` by
    itself, whose first results must equal row `index` of the whole; None where rows mean nothing.
    """

    name: str
    reference: Callable[..., Any]
    invoke: Callable[[Any, Inputs], tuple[Any, ...]]
    cases: tuple[Case, ...]
    benchmarks: tuple[Case, ...]
    tolerance: Mapping[str, Tolerance]
    cost: Callable[[Inputs], Cost]
    order: tuple[str, ...]
    pack: Callable[..., Any] | None = None
    alone: Callable[[Inputs, int], dict[str, Any]] | None = None
    implementations: dict[str, Impl] = field(default_factory=dict)

    def __post_init__(self) -> None:
        serves_anywhere = Impl("reference", self.reference, lambda machine: None, self.pack)
        self.implementations["reference"] = serves_anywhere

    def register(self, implementation: Impl) -> None:
        """Add an implementation. Its name must be in `order`, so that its rank is declared."""
        assert implementation.name in self.order, f"{self.name}: {implementation.name} has no rank"
        self.implementations[implementation.name] = implementation


class KernelRegistry:
    """Which implementation of each op serves, decided on construction.

    `names`: the implementations to consider, None for all; "reference" alone gives the bodies.
    Raises LookupError, with every reason, where an op is left without one.
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
        """One line per op: which implementation serves, and why the others do not."""
        return [
            f"{name}: {serving.name}"
            + "".join(f"; {other}: {reason}" for other, reason in self._passed_over[name])
            for name, serving in self._serving.items()
        ]
