"""Trials that measure the ISAs for a model: they run the kernels of the model with its shapes.

Each trial is a small plan that runs like a step. Its matrices have the formats and the columns of
the model's matrices, in the same proportions, but fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.kernels.isa.choice import MEASURED_ROWS, PROMPT_ROWS, Cell, Kind, Trial
from penstock.kernels.isa.instruction_sets import (
    TILES,
    IsaSelection,
    KernelShapes,
    MatrixForm,
    RowRange,
)
from penstock.kernels.native.ops import NativeOps, PlanOps, new_cache
from penstock.kernels.native.plan_inputs import plan_arguments
from penstock.kernels.random_matrix import random_like
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.weights import Dense, Linear

_PANEL: Final = 16
_TOKENS: Final = MEASURED_ROWS[-1][0]  # tokens of the largest trial
_ELEMENTS: Final = 1 << 18  # elements of all products of a trial
_MOST_ELEMENTS: Final = 1 << 19  # limit for a matrix that has a panel for every thread
_FEW_ROWS: Final = 4  # most rows for which products are repeated
_REPEATS: Final = 8  # repetitions, so that the cost of the call itself matters little
_MOST_FORMS: Final = 3  # matrix formats to measure: the formats with the most elements
_LEAST_SHARE: Final = 0.25  # an ISA that computes a smaller share of the elements gets no trial
_CONTEXT: Final = 320  # tokens of context: more than one span of attention
_CHUNK: Final = 32  # prompt tokens in a trial of attention
_ATTENTION_SUMS: Final = (
    1 << 22
)  # most multiply-adds of scores in a trial of attention with several heads
_INNER: Final = 1024  # most columns in a trial of other kernels
_NORMS: Final = 4  # norms in a trial of other kernels

Array = npt.NDArray[Any]
Body = Callable[[PlanOps], Any]
"""Records the work to measure into a plan, and returns its last result."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A linear layer in a trial.

    `family`: kernel family, "dense" or "affine".
    `elements`: elements of the weight, times `repeats`.
    `repeats`: number of times that a run computes the layer.
    `x`: input, [_PANEL, columns].
    `packed`: ISA -> the weight packed for the ISA.
    """

    family: str
    elements: int
    repeats: int
    x: Array
    packed: dict[str, Any]

    def served_by(self, arithmetic: str, isa: str) -> bool:
        """Return whether the kernels of `isa` can compute the layer from weights packed for
        `arithmetic`, with the bits of `arithmetic`."""
        return bool(_native.KernelSet(arithmetic).serves(self.family, isa, self.packed[arithmetic]))


def candidate_isas() -> list[str]:
    """Return the ISAs that may be chosen on this CPU, narrowest first. `scalar` is included only if
    there is no other ISA: a vector ISA does the same work with fewer instructions."""
    real = [name for name in _native.supported_isas() if not name.startswith("emulated")]
    return [name for name in real if name != "scalar"] or real


def isa_trials(shapes: KernelShapes, isas: Sequence[str], pool: Any) -> list[Trial]:
    """Return the trials of `isas` (narrowest first) for a model with these shapes. Raises
    ValueError for shapes that the kernels do not support."""
    makers = (_product_and_prompt_trials, _attention_trials, _other_trials)
    return [trial for make in makers for trial in make(shapes, isas, pool)]


def _product_and_prompt_trials(
    shapes: KernelShapes, isas: Sequence[str], pool: Any
) -> Iterator[Trial]:
    products = _products(shapes.forms, isas, pool)

    def agree(a: str, b: str) -> bool:
        return all(one.served_by(a, b) and one.served_by(b, a) for one in products)

    arithmetics = _distinct(isas, agree)
    yield from _product_trials(products, arithmetics, isas, pool)
    yield from _prompt_trials(products, arithmetics, isas, pool)


def _product_trials(
    products: Sequence[_Product], arithmetics: Sequence[str], isas: Sequence[str], pool: Any
) -> Iterator[Trial]:
    total = sum(one.elements for one in products)
    for arithmetic in arithmetics:

        def body(plan: PlanOps, arithmetic: str = arithmetic, repeats: int = 1) -> Any:
            out = None
            for one in products:
                x = plan.gather_rows(one.x, plan.inputs.tokens)
                for _ in range(one.repeats * repeats):
                    out = plan.linear(x, one.packed[arithmetic])
            return out

        for isa in isas:
            served = sum(one.elements for one in products if one.served_by(arithmetic, isa))
            if isa == arithmetic or served >= _LEAST_SHARE * total:
                chosen = replace(IsaSelection.all_of(arithmetic), linear=(RowRange(None, isa),))
                ops = NativeOps.eager(pool, chosen)
                once, often = _plan(ops, body), _plan(ops, partial(body, repeats=_REPEATS))
                for rows, _ in MEASURED_ROWS:
                    plan = often if rows <= _FEW_ROWS else once
                    yield _trial(Cell("products", arithmetic, isa, rows), plan, _apart(rows))


def _prompt_trials(
    products: Sequence[_Product], arithmetics: Sequence[str], isas: Sequence[str], pool: Any
) -> Iterator[Trial]:
    """Yield the trials of prompt tokens in bf16 tiles, if enough elements are integers."""
    total = sum(one.elements for one in products)
    integers = sum(one.elements for one in products if one.family == "affine")
    if integers < _LEAST_SHARE * total:
        return
    for arithmetic in arithmetics:

        def body(plan: PlanOps, arithmetic: str = arithmetic) -> Any:
            out = None
            for one in products:
                x = plan.gather_rows(one.x, plan.inputs.tokens)
                for _ in range(one.repeats):
                    weight = one.packed[arithmetic]
                    out = plan.linear_by_kind(x, weight, plan.inputs.is_prompt)
            return out

        for isa in isas:
            if isa in TILES:
                chosen = replace(IsaSelection.all_of(arithmetic), prompts=isa)
                recorder = NativeOps.eager(pool, chosen).recorder(
                    PROMPT_ROWS, PROMPT_ROWS, 1, 1, kinds=True
                )
                plan = recorder.finish(body(recorder))
                step = replace(
                    _apart(PROMPT_ROWS),
                    is_prompt=np.ones(PROMPT_ROWS, np.int32),
                    sampled_is_prompt=_int32(np.empty(0)),
                )
                yield _trial(Cell("prompts", arithmetic, isa, PROMPT_ROWS), plan, step)


def _products(forms: Sequence[MatrixForm], isas: Sequence[str], pool: Any) -> list[_Product]:
    measured = sorted(forms, key=lambda form: -form.elements)[:_MOST_FORMS]
    total = sum(form.elements for form in measured)
    products = []
    for form in measured:
        wanted = _ELEMENTS * form.elements // total
        for_threads = min(pool.threads * _PANEL, _MOST_ELEMENTS // form.columns)
        rows = min(form.rows, max(wanted // form.columns, for_threads, _PANEL))
        linear = Linear((random_like(form.pattern, rows // _PANEL * _PANEL or rows, form.columns),))
        elements = linear.shape[0] * form.columns
        packed = {isa: NativeOps.eager(pool, isa).pack_linear(linear) for isa in isas}
        family = "dense" if isinstance(form.pattern, Dense) else "affine"
        repeats = max(1, round(wanted / elements))
        products.append(
            _Product(family, repeats * elements, repeats, _numbers(form.columns), packed)
        )
    return products


def _attention_trials(shapes: KernelShapes, isas: Sequence[str], pool: Any) -> Iterator[Trial]:
    heads = _fewer_heads(shapes.heads)
    query, shared, dim = heads
    halves = shapes.cache_dtype == "float16" and query > shared
    tokens, blocks = shapes.block_size, -(-_CONTEXT // shapes.block_size)
    cache = new_cache((blocks, shared, dim, tokens), shapes.cache_dtype)
    numbers = _numbers(query * dim)

    def agree(a: str, b: str) -> bool:
        return bool(_native.KernelSet(a).serves("attention", b, shared_halves=halves))

    def body(plan: PlanOps) -> Any:
        x = plan.gather_rows(numbers, plan.inputs.tokens)
        if shapes.reach == "both":
            return plan.bidirectional_attention(x, plan.inputs, cache, heads, 1.0, 0)
        return plan.attention(x, plan.inputs, cache, heads, 1.0, 0)

    steps = [_apart(1, blocks), _together(_CHUNK, blocks)]
    yield from _of_each_arithmetic("attention", _distinct(isas, agree), pool, body, steps)


def _other_trials(shapes: KernelShapes, isas: Sequence[str], pool: Any) -> Iterator[Trial]:
    inner = min(shapes.inner, _INNER)
    numbers, weight = _numbers(2 * inner), np.ones(inner, np.float32)

    def agree(a: str, b: str) -> bool:
        return bool(_native.KernelSet(a).serves("other", b))

    def body(plan: PlanOps) -> Any:
        rows = residual = plan.silu_mul(plan.gather_rows(numbers, plan.inputs.tokens))
        for _ in range(_NORMS):
            rows, residual = plan.add_rms_norm(rows, residual, weight, 1e-5)
        return rows

    steps = [_apart(1), _apart(_TOKENS)]
    yield from _of_each_arithmetic("other", _distinct(isas, agree), pool, body, steps)


def _of_each_arithmetic(
    kind: Kind,
    arithmetics: Sequence[str],
    pool: Any,
    body: Body,
    steps: Sequence[StepInputs[Array]],
) -> Iterator[Trial]:
    for arithmetic in arithmetics:
        plan = _plan(NativeOps.eager(pool, arithmetic), body, steps[0].block_tables.shape[1])
        for step in steps:
            yield _trial(Cell(kind, arithmetic, arithmetic, len(step.tokens)), plan, step)


def _distinct(isas: Sequence[str], agree: Callable[[str, str], bool]) -> list[str]:
    """Return the ISAs with distinct arithmetic: of several ISAs that agree, only the widest."""
    found: list[str] = []
    for isa in reversed(isas):
        if not any(agree(one, isa) for one in found):
            found.append(isa)
    return found


def _plan(ops: NativeOps, body: Body, blocks: int = 1) -> Any:
    recorder = ops.recorder(_TOKENS, _TOKENS, 1, blocks)
    return recorder.finish(body(recorder))


def _trial(cell: Cell, plan: Any, step: StepInputs[Array]) -> Trial:
    arguments = plan_arguments(step)
    return Trial(cell, lambda: plan.run(*arguments))


def _numbers(columns: int) -> Array:
    """Return [_PANEL, columns] float32 numbers between -1 and 1."""
    count = _PANEL * columns
    return np.sin(np.arange(count, dtype=np.float32)).reshape(_PANEL, columns)


def _fewer_heads(heads: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return (H, K, D) with fewer heads but the same number of query heads per KV head."""
    query, shared, dim = heads
    group = query // shared
    most = max(1, _ATTENTION_SUMS // (group * dim * _CONTEXT * _CHUNK))
    kept = min(shared, most)
    return group * kept, kept, dim


def _apart(rows: int, blocks: int = 1) -> StepInputs[Array]:
    """Return the inputs of a step with the last token of each of `rows` sequences. All sequences
    have the same KV blocks."""
    return _step(np.arange(rows + 1), np.full(rows, _CONTEXT), blocks)


def _together(tokens: int, blocks: int) -> StepInputs[Array]:
    """Return the inputs of a step with the last `tokens` tokens of one sequence."""
    return _step(np.array([0, tokens]), np.array([_CONTEXT]), blocks)


def _step(starts: Array, contexts: Array, blocks: int) -> StepInputs[Array]:
    tokens, rows = int(starts[-1]), len(contexts)
    tables = np.broadcast_to(np.arange(blocks), (rows, blocks))
    return StepInputs(
        tokens=_int32(np.arange(tokens) % _PANEL),
        positions=_int32(np.arange(tokens)),
        slots=_int32(np.arange(tokens)),
        query_starts=_int32(starts),
        context_lens=_int32(contexts),
        block_tables=_int32(tables),
        sample_rows=_int32(np.empty(0)),
    )


def _int32(values: Array) -> Array:
    return np.ascontiguousarray(values, np.int32)
