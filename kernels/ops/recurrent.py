"""The ops `causal_conv`, `gated_conv`, `gated_delta_rule` and `state_space_scan`, which read and
write the states of recurrent layers (see `kernels.recurrent_state`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.cases.states import (
    StateCase,
    conv_results,
    conv_state,
    matrix_results,
    matrix_state,
    state_step,
)
from penstock.kernels.ops.recurrent_reference import (
    causal_conv,
    gated_conv,
    gated_delta_rule,
    state_space_scan,
)
from penstock.kernels.recurrent_state import STATE_TILE, conv_ring
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance

_Rows = tuple[StateCase, ...]


def _conv_inputs(
    rows: _Rows, channels: int, taps: int, drafts: int, parts: int, with_bias: bool
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        step = state_step(source, rows)
        sizes = (channels, taps, conv_ring(taps, drafts))
        return {
            "x": source.normal(len(step.tokens), parts * channels),
            "weight": source.normal(channels, taps),
            "bias": source.normal(channels) if with_bias else None,
            "inputs": step,
            "state": conv_state(source, step, rows, sizes),
            "rows": rows,
        }

    return make_inputs


def _delta_inputs(
    rows: _Rows, heads: tuple[int, int, int, int], drafts: int
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        num_groups, num_heads, key_dim, value_dim = heads
        step = state_step(source, rows)
        tokens, columns = len(step.tokens), 2 * num_groups * key_dim + num_heads * value_dim
        decay = source.normal(2, num_heads)
        decay[0] = decay[0].exp() / 2
        return {
            "qkv": source.normal(tokens, columns),
            "gates": source.normal(tokens, 2 * num_heads) * 2,
            "decay": decay,
            "inputs": step,
            "state": matrix_state(source, step, rows, heads, _ring(drafts)),
            "heads": heads,
            "beta_scale": 1.0 if num_heads > num_groups else 2.0,
            "rows": rows,
        }

    return make_inputs


def _scan_inputs(
    rows: _Rows, heads: tuple[int, int, int, int], drafts: int
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        num_groups, num_heads, key_dim, value_dim = heads
        step = state_step(source, rows)
        tokens, columns = len(step.tokens), 2 * num_groups * key_dim + num_heads * value_dim
        constants = source.normal(3, num_heads)
        constants[0] = constants[0].exp() / 4
        xbc = source.normal(tokens, columns)
        xbc[:, num_heads * value_dim :] /= key_dim**0.5
        return {
            "xbc": xbc,
            "dt": source.normal(tokens, num_heads) * 2,
            "constants": constants,
            "inputs": step,
            "state": matrix_state(source, step, rows, heads, _ring(drafts)),
            "heads": heads,
            "dt_limits": (0.01, 2.0) if num_heads > num_groups else (0.0, float("inf")),
            "rows": rows,
        }

    return make_inputs


def _ring(drafts: int) -> int:
    return STATE_TILE * (2 if drafts else 1)


def _invoke(op: str, names: Sequence[str], results: Callable[..., Any]) -> Callable[..., Any]:
    def invoke(ops: Any, inputs: Inputs) -> tuple[Any, ...]:
        out = getattr(ops, op)(*(inputs[name] for name in names))
        return out, *results(inputs["inputs"], inputs["rows"], inputs["state"])

    return invoke


def _conv_cost(inputs: Inputs) -> Cost:
    taps = inputs["weight"].shape[1]
    tokens, channels = len(inputs["x"]), inputs["weight"].shape[0]
    rows = len(inputs["inputs"].context_lens)
    moved = 4 * channels * (2 * tokens + taps + 2 * rows * (taps - 1))
    return Cost(moved, 2 * taps * tokens * channels)


def _matrix_cost(products: int) -> Callable[[Inputs], Cost]:
    """Return the cost of an op with `products` products of N by D per token and head."""

    def cost(inputs: Inputs) -> Cost:
        num_groups, num_heads, key_dim, value_dim = inputs["heads"]
        step = inputs["inputs"]
        tokens, rows = len(step.tokens), len(step.context_lens)
        matrix = num_heads * key_dim * value_dim
        columns = 2 * num_groups * key_dim + 2 * num_heads * value_dim
        written = int((step.query_starts.diff() >= STATE_TILE).sum())
        moved = 4 * (matrix * (rows + written) + tokens * columns)
        return Cost(moved, 2 * products * tokens * matrix)

    return cost


# A decode at each place of a tile, from the first token of a sequence to the end of a tile.
_DECODES = (StateCase(0, 1, source="empty"), *(StateCase(start, 1) for start in range(1, 35)))
_CHUNKS = (
    StateCase(0, 50, source="empty"),
    StateCase(0, 16, source="empty", save_after=16),
    StateCase(0, 3, source="empty"),
    StateCase(5, 40, save_after=27),
    StateCase(16, 1),
    StateCase(30, 2, save_after=2),
    StateCase(3, 13),
    StateCase(96, 33, source="snapshot", save_after=16),
    StateCase(32, 1, source="snapshot"),
    StateCase(64, 20, source="snapshot", save_after=0),
    StateCase(15, 1, save_after=1),
    StateCase(70, 90, save_after=74),
)
# Drafts that are rejected in the next step: one chunk crosses a tile, one starts a tile after the
# last complete one.
_DRAFTS = (
    StateCase(10, 9, drafts=8),
    StateCase(18, 5, drafts=4, behind=1),
    StateCase(31, 6, drafts=4),
    StateCase(23, 9, drafts=8, behind=1),
    StateCase(16, 4, drafts=3, behind=1, save_after=0),
    StateCase(0, 9, drafts=8, source="empty"),
    StateCase(48, 9, drafts=8, source="snapshot"),
    StateCase(0, 41, drafts=5, source="empty", save_after=32),
    StateCase(31, 1, behind=1, save_after=1),
    StateCase(15, 4, drafts=3, save_after=1),
)


def _cases(make: Callable[..., Callable[[int], dict[str, Any]]]) -> tuple[Case, ...]:
    return (
        Case("decodes", "float", make(_DECODES, (2, 4, 16, 24), 0)),
        Case("chunks", "float", make(_CHUNKS, (2, 4, 32, 16), 0)),
        Case("chunks-equal-groups", "float", make(_CHUNKS[::2], (3, 3, 24, 40), 0)),
        Case("chunks-128", "float", make(_CHUNKS[3:8], (1, 2, 128, 128), 0)),
        Case("narrow", "float", make(_CHUNKS[1:6], (1, 3, 8, 8), 0)),
        Case("drafts", "float", make(_DRAFTS, (2, 4, 16, 32), 8)),
        Case("drafts-one-head", "float", make(_DRAFTS[:4], (1, 1, 64, 72), 8)),
        Case("decode-256", "float", make((StateCase(21, 1),), (2, 4, 128, 256), 0)),
    )


def _conv_cases(parts: int) -> tuple[Case, ...]:
    def case(name: str, rows: _Rows, channels: int, taps: int, drafts: int, bias: bool) -> Case:
        return Case(name, "float", _conv_inputs(rows, channels, taps, drafts, parts, bias))

    return (
        case("decodes", _DECODES, 40, 4, 0, True),
        case("decodes-3", _DECODES, 24, 3, 0, False),
        case("chunks", _CHUNKS, 72, 4, 0, False),
        case("chunks-3", _CHUNKS, 300, 3, 0, True),
        case("chunks-2", _CHUNKS, 8, 2, 0, True),
        case("drafts", _DRAFTS, 136, 4, 8, True),
        case("drafts-3", _DRAFTS, 32, 3, 8, False),
        case("wide", _CHUNKS[:4], 2600, 4, 0, True),
    )


_ORDER = ("triton", "native", "reference")
_DECODE, _PROMPT = (StateCase(521, 1),), (StateCase(0, 512, source="empty"),)
_CONV_NAMES = ("x", "weight", "bias", "inputs", "state")

CAUSAL_CONV, GATED_CONV = (
    Op(
        name=name,
        signature=f"x float [T, {columns}]; weight float32 [C, L]; optional bias float32 [C]; "
        "inputs StepInputs; update state ConvState; write out float [T, C]",
        reference=reference,
        custom_invoke=_invoke(name, _CONV_NAMES, conv_results),
        cases=_conv_cases(parts),
        benchmarks=tuple(
            Case(f"{model}-{kind}", "float", _conv_inputs(rows, channels, taps, 0, parts, False))
            for kind, rows in (("T1", _DECODE), ("T512", _PROMPT))
        ),
        tolerance={"float": Tolerance(1e-5, 1e-5)},
        cost=_conv_cost,
        order=_ORDER,
    )
    for name, reference, columns, parts, model, channels, taps in (
        ("causal_conv", causal_conv, "C", 1, "qwen3.5-0.8b", 6144, 4),
        ("gated_conv", gated_conv, "3*C", 3, "lfm2-1.2b", 2048, 3),
    )
)
GATED_DELTA_RULE = Op(
    name="gated_delta_rule",
    signature="qkv float [T, 2*G*N+H*D]; gates float [T, 2*H]; decay float32 [2, H]; "
    "inputs StepInputs; update state MatrixState; heads StateHeads; real beta_scale; "
    "write out float [T, H*D]",
    reference=gated_delta_rule,
    custom_invoke=_invoke(
        "gated_delta_rule",
        ("qkv", "gates", "decay", "inputs", "state", "heads", "beta_scale"),
        matrix_results,
    ),
    cases=_cases(_delta_inputs),
    benchmarks=tuple(
        Case(f"qwen3.5-0.8b-{kind}", "float", _delta_inputs(rows, (16, 16, 128, 128), 0))
        for kind, rows in (("T1", _DECODE), ("T512", _PROMPT))
    ),
    tolerance={"float": Tolerance(2e-5, 2e-5)},
    cost=_matrix_cost(3),
    order=_ORDER,
)
STATE_SPACE_SCAN = Op(
    name="state_space_scan",
    signature="xbc float [T, H*D+2*G*N]; dt float [T, H]; constants float32 [3, H]; "
    "inputs StepInputs; update state MatrixState; heads StateHeads; dt_limits DtLimits; "
    "write out float [T, H*D]",
    reference=state_space_scan,
    custom_invoke=_invoke(
        "state_space_scan",
        ("xbc", "dt", "constants", "inputs", "state", "heads", "dt_limits"),
        matrix_results,
    ),
    cases=_cases(_scan_inputs),
    benchmarks=tuple(
        Case(f"granite4-h-{kind}", "float", _scan_inputs(rows, (1, 48, 128, 64), 0))
        for kind, rows in (("T1", _DECODE), ("T512", _PROMPT))
    ),
    tolerance={"float": Tolerance(2e-5, 2e-5)},
    cost=_matrix_cost(2),
    order=_ORDER,
)
