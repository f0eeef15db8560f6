"""Implementations of `Ops` with the native kernels: `NativeOps` runs kernels over numpy arrays,
`PlanOps` records them into a plan.

Both use the same methods over a `CallBackend`, so a plan gives the same bits as eager calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.kernels.column_squares import Squares
from penstock.kernels.isa.instruction_sets import IsaSelection
from penstock.kernels.layer_graphs import LayerGraphs
from penstock.kernels.lora_slots import AdapterSlots, SlotSizes
from penstock.kernels.native.adjust_operands import adjust_operands
from penstock.kernels.native.backend import CallBackend, EagerBackend, PlanRecorder
from penstock.kernels.native.collecting import CollectingBackend, ExpertNames
from penstock.kernels.native.latent_ops import LatentBackendOps
from penstock.kernels.native.linear_ops import LinearBackendOps
from penstock.kernels.native.pack import NativeSlots, matrix_source
from penstock.kernels.native.plan_inputs import (
    ADAPTER_INPUTS,
    CROSS_INPUTS,
    KIND_INPUTS,
    ROPE_INPUTS,
    STATE_INPUTS,
    media_inputs,
)
from penstock.kernels.native.recurrent_ops import BackendRecurrentOps
from penstock.kernels.native.row_ops import row_ops
from penstock.kernels.recurrent_state import StateRows
from penstock.kernels.routing import SCORINGS, Routing
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import (
    SCALE_BYTES,
    AdapterRows,
    CacheDtype,
    HeadNorm,
    LayerCache,
    MediaRows,
    StepInputs,
)
from penstock.kernels.weights import Experts, Linear, Matrix

Tensor = TypeVar("Tensor")
Pool = _native.ThreadPool


class BackendOps(LinearBackendOps[Tensor], BackendRecurrentOps[Tensor], LatentBackendOps[Tensor]):
    """The ops over any `CallBackend`, as `kernels.ops_interface.Ops` specifies them. Ops without a
    method here come from `row_ops`. `packed_bytes`: the size of all matrices that these ops have
    packed."""

    layer_graphs: LayerGraphs | None = None

    if TYPE_CHECKING:

        def __getattr__(self, op: str) -> Callable[..., Any]: ...

    def __init__(self, backend: CallBackend[Tensor]) -> None:
        self._backend = backend
        self.packed_bytes = 0
        self._names: dict[int, tuple[str, ...] | ExpertNames] = {}

    @property
    def isa(self) -> str:
        """The ISA whose arithmetic matrix products have."""
        return str(self._backend.kernels.isa)

    def pack_linear(self, weight: Linear) -> Any:
        use = "products" if weight.rounding == "none" else "rounded_products"
        packed = self._pack(weight, use)
        if weight.names:
            self._names[id(packed)] = weight.names
        return packed

    def _pack(self, weight: Linear, use: str = "products") -> Any:
        parts = [matrix_source(part) for part in weight.parts]
        packed = _native.PackedLinear(
            self._backend.kernels, self._backend.pool, parts, weight.bias, use
        )
        self.packed_bytes += packed.size_bytes
        return packed

    def pack_head(self, weight: Linear) -> Any:
        return self.pack_linear(weight)

    def pack_experts(self, weights: Experts) -> Any:
        parts = tuple(part for parts in weights.opening for part in parts)
        gate_up = Linear(parts, weights.gate_up_bias)
        layers = (gate_up, Linear(weights.down, weights.down_bias))
        first, second = (self._pack(Linear(one.parts, _flat(one.bias))) for one in layers)
        packed = _native.PackedExperts(first, second, weights.activation, weights.shares_scale)
        if weights.down_name:
            self._names[id(packed)] = ExpertNames.of(weights)
        return packed

    def pack_embedding(self, table: Matrix) -> Any:
        """Pack the table like an output head, for reading by rows."""
        return self._pack(Linear((table,)), "rows")

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        """Pack the table once, for use as embedding and as output head."""
        packed = self._pack(Linear((table,)), "rows")
        return packed, packed

    def constant(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def new_cache(
        self, shape: tuple[int, int, int, int], dtype: CacheDtype
    ) -> LayerCache[npt.NDArray[Any]]:
        return new_cache(shape, _ELEMENTS[dtype])

    def embedding(self, table: Any, tokens: Tensor, scale: float) -> Tensor:
        out = self._backend.empty(tokens, table.shape[1])
        self._backend.call("embedding", [tokens, out], reals=[scale], weight=table)
        return out

    def adapter_slots(self, sizes: SlotSizes) -> AdapterSlots:
        return NativeSlots(sizes)

    def lora(
        self, x: Tensor, y: Tensor, slots: Any, linear: int, rows: AdapterRows[Tensor]
    ) -> Tensor:
        inner = self._backend.empty(x, slots.table.inner_columns(linear))
        tensors = [x, y, rows.order, rows.starts, rows.slots, inner]
        integers = [linear, self._backend.pool.threads]
        self._backend.call("lora", tensors, integers, weight=slots.table)
        return y

    def norm_columns(self, x: Tensor, weight: Any, first: int, group: int, eps: float) -> Tensor:
        self._backend.call("norm_columns", [x, weight], [first, group], [eps])
        return x

    def rope_cache(
        self,
        qkv: Tensor,
        rope: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Any],
        heads: tuple[int, int, int],
        head_norm: HeadNorm | None,
    ) -> Tensor:
        out = self._backend.empty(qkv, heads[0] * heads[2])
        tensors = [qkv, rope, inputs.positions, inputs.slots, cache.keys, cache.values, out]
        if head_norm is None:
            self._backend.call(_over("rope_cache", cache), tensors, heads)
        else:
            tensors += [head_norm.q_weight, head_norm.k_weight]
            self._backend.call(_over("norm_rope_cache", cache), tensors, heads, [head_norm.eps])
        return out

    def norm_values(self, x: Tensor, heads: tuple[int, int, int], eps: float) -> Tensor:
        out = self._backend.empty(x, (heads[0] + 2 * heads[1]) * heads[2])
        self._backend.call("norm_values", [x, out], heads, [eps])
        return out

    def attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Any],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
        sinks: Tensor | None = None,
        softcap: float = 0.0,
    ) -> Tensor:
        out = self._backend.empty(q, _columns(q))
        max_context = _columns(inputs.block_tables) * cache.values.shape[2]
        partials = self._backend.scratch(_native.attention_partial_floats(*heads, max_context))
        tensors = [q, inputs.query_starts, inputs.context_lens, inputs.block_tables]
        tensors += [cache.keys, cache.values, out, partials]
        visible = None if inputs.media is None else inputs.media.visible
        kernel, extra = "paged_attention", []
        if visible is not None:
            _refuse_sinks(sinks)
            kernel, extra = "visible_attention", [visible]
        elif sinks is not None:
            kernel, extra = "sink_attention", [sinks]
        integers, reals = [*heads, window], [scale, softcap]
        self._backend.call(_over(kernel, cache), [*tensors, *extra], integers, reals)
        return out

    def bidirectional_attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Any],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
        bias: Tensor | None = None,
    ) -> Tensor:
        out = self._backend.empty(q, _columns(q))
        tensors = [q, inputs.query_starts, inputs.context_lens, inputs.block_tables]
        tensors += [cache.keys, cache.values, out]
        if bias is None:
            self._backend.call("bidirectional_attention", tensors, [*heads, window], [scale])
        else:
            self._backend.call("biased_attention", [*tensors, bias], [*heads, window], [scale])
        return out

    def rounded_attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Any],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
    ) -> Tensor:
        out = self._backend.empty(q, _columns(q))
        tensors = [q, inputs.query_starts, inputs.context_lens, inputs.block_tables]
        tensors += [cache.keys, cache.values, out]
        self._backend.call("rounded_attention", tensors, [*heads, window], [scale])
        return out

    def route_experts(
        self,
        logits: Tensor,
        routing: Routing,
        bias: Tensor | None = None,
        expert_scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        chosen = self._backend.empty(logits, routing.top_k, "int32")
        shares = self._backend.empty(logits, routing.top_k)
        if expert_scale is not None and (bias is not None or routing.scoring == "sparsemixer"):
            raise ValueError("expert_scale: is not supported with a bias or with sparsemixer")
        kernel, extra = "route_experts", []
        if bias is not None:
            kernel, extra = "route_experts_by_bias", [bias]
        elif expert_scale is not None:
            kernel, extra = "route_scaled_experts", [expert_scale]
        self._backend.call(kernel, [logits, chosen, shares, *extra], *routing_numbers(routing))
        return chosen, shares

    def experts(self, x: Tensor, chosen: Tensor, shares: Tensor, weights: Any) -> Tensor:
        count, ff, width = weights.shape
        each, out = _columns(chosen), self._backend.empty(x, width)
        scratch = [
            self._backend.empty(x, each * weights.row_bytes, "uint8"),
            self._backend.empty(x, each * 2 * ff),
            self._backend.empty(x, each * weights.inner_bytes, "uint8"),
            self._backend.empty(x, each * width),
            self._backend.empty(x, each * 4, "int32"),
            self._backend.scratch(count + 1, "int32"),
        ]
        tensors = [x, chosen, shares, out, *scratch]
        self._backend.call("experts", tensors, [self._backend.pool.threads], weight=weights)
        return out


for _name, _op in row_ops():
    setattr(BackendOps, _name, _op)


class NativeOps(BackendOps[npt.NDArray[Any]]):
    """The ops and the sampler, run at once over numpy arrays."""

    @classmethod
    def eager(cls, pool: Pool, isa: str | IsaSelection | None = None) -> NativeOps:
        """Return ops that run on the thread pool `pool`. `isa`: one ISA for all kernels, or a
        selection; None: the widest ISA of the CPU. Raises ValueError for an ISA that the CPU does
        not have."""
        if not isinstance(isa, IsaSelection):
            isa = IsaSelection.all_of(isa or "auto")
        kernels = _native.KernelSet(
            isa.products, isa.attention, isa.other, isa.by_rows(), isa.prompts
        )
        return cls(EagerBackend(kernels, pool))

    def on(self, pool: Pool) -> NativeOps:
        """Return ops over the same packed weights that run on another thread pool."""
        ops = NativeOps(EagerBackend(self._backend.kernels, pool))
        ops._names = self._names
        return ops

    def recorder(
        self,
        max_tokens: int,
        max_rows: int,
        max_samples: int,
        max_blocks: int,
        *,
        adapters: bool = False,
        media: MediaRows[Any] | None = None,
        cross: bool = False,
        states: bool = False,
        kinds: bool = False,
    ) -> PlanOps:
        """Return ops with the same ISAs and thread pool that record a step of at most these sizes
        into a plan.

        - `adapters`: whether the step's inputs include LoRA adapters.
        - `media`: not None if they include media. The plan reads `rows` and `deep` of this value
          at each run: they are buffers that the caller fills before a run. The presence of
          `rope_positions` (with `rope_rows`) and `visible` says whether steps have them; other
          values are not read.
        - `cross`: whether rows also attend to contexts of up to `max_blocks` blocks in another
          cache; see `PlanOps.cross_inputs`.
        - `states`: whether the step's inputs include the states of recurrent layers.
        - `kinds`: whether they say which tokens are prompt tokens.
        """
        backend = PlanRecorder(
            self._backend.kernels, self._backend.pool, max_tokens, max_rows, max_samples
        )
        return PlanOps(
            backend,
            max_blocks,
            adapters=adapters,
            media=media,
            cross=cross,
            states=states,
            kinds=kinds,
        )

    def collecting(self, squares: Squares) -> NativeOps:
        """Return ops that also add the inputs of the linear layers and experts that these ops have
        packed to `squares`. Weights without names are not collected for."""
        own = self._backend
        return NativeOps(CollectingBackend(own.kernels, own.pool, self._names, squares))

    def sample(self, logits: npt.NDArray[np.float32], rows: SamplingRows) -> npt.NDArray[np.int32]:
        """Return a token per row of `logits: [S, V]`, which are adjusted in place: [S] int32,
        negative for a row without a token. See `kernels.sampler_inputs`."""
        barren = self.adjust_logits(logits, rows) if rows.adjusts else None
        tokens = np.empty(len(logits), dtype=np.int32)
        if rows.temperature.any():
            seed, position = rows.seed.view(np.int64), rows.position.view(np.int64)
            tensors = [logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, seed, position]
            self._backend.call("sample", [*tensors, tokens])
        else:
            self._backend.call("argmax", [logits, tokens])
        if rows.masks is not None and barren is not None:
            np.copyto(tokens, barren, where=barren != 0)
        return tokens

    def adjust_logits(
        self, logits: npt.NDArray[np.float32], rows: SamplingRows
    ) -> npt.NDArray[np.int32]:
        """Adjust `logits: [S, V]` in place. Return [S] int32: NOTHING_ALLOWED for a row whose mask
        allows no token, else 0. See `kernels.sampler_inputs`."""
        barren = np.empty(len(logits), dtype=np.int32)
        self._backend.call("adjust_logits", [logits, *adjust_operands(logits.shape, rows), barren])
        return barren

    def top_logprobs(
        self,
        logits: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int32],
        count: int,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return log-probabilities for the rows `rows: [R]` of adjusted logits [S, V]: the
        log-probabilities of `tokens`, [R], and the ids and log-probabilities of the `count` best
        tokens, [R, count] each. See `kernels.sampler_inputs`."""
        own = np.empty(len(rows), dtype=np.float32)
        ids = np.empty((len(rows), count), dtype=np.int32)
        logprobs = np.empty((len(rows), count), dtype=np.float32)
        self._backend.call("top_logprobs", [logits, rows, tokens, own, ids, logprobs])
        return own, ids, logprobs


class PlanOps(BackendOps[Any]):
    """Ops that record kernel calls into a plan.

    - `inputs`: the inputs of the step, as plan tensors.
    - `cross_inputs`: the same with the context lengths and block tables of another cache, for
      cross-attention; None in a plan without it.
    """

    def __init__(
        self,
        backend: PlanRecorder,
        max_blocks: int,
        *,
        adapters: bool,
        media: MediaRows[Any] | None,
        cross: bool = False,
        states: bool = False,
        kinds: bool = False,
    ) -> None:
        super().__init__(backend)
        self._recorder = backend.recorder
        further = [
            *(ADAPTER_INPUTS if adapters else ()),
            *media_inputs(media),
            *(CROSS_INPUTS if cross else ()),
            *(STATE_INPUTS if states else ()),
            *(KIND_INPUTS if kinds else ()),
        ]
        tensors = self._recorder.inputs(max_blocks, further)
        base = tensors[: len(tensors) - len(further)]
        named = dict(zip(further, tensors[len(base) :], strict=True))
        tokens, positions, slots, starts, contexts, tables, sample_rows = base
        self.inputs: StepInputs[Any] = StepInputs(
            tokens, positions, slots, starts, contexts, tables, sample_rows
        )
        if adapters:
            slots, order, starts, sampled_order, sampled_starts = (
                named[name] for name in ADAPTER_INPUTS
            )
            self.inputs = replace(
                self.inputs,
                adapters=AdapterRows(slots, order, starts),
                sampled_adapters=AdapterRows(slots, sampled_order, sampled_starts),
            )
        if media is not None:
            turned = tuple(named[name] for name in ROPE_INPUTS[:-1] if name in named)
            rows = MediaRows(
                named["media_index"],
                media.rows,
                media.deep,
                turned,
                named.get("media_rope_rows"),
                named.get("media_visible"),
            )
            self.inputs = replace(self.inputs, media=rows)
        if states:
            state_rows = StateRows(*(named[name] for name in STATE_INPUTS))
            self.inputs = replace(self.inputs, states=state_rows)
        if kinds:
            self.inputs = replace(self.inputs, **{name: named[name] for name in KIND_INPUTS})
        self.cross_inputs: StepInputs[Any] | None = None
        if cross:
            contexts, tables = (named[name] for name in CROSS_INPUTS)
            self.cross_inputs = replace(self.inputs, context_lens=contexts, block_tables=tables)

    def keep(self, tensor: Any) -> None:
        """Keep a further result [rows, columns] of each run until the next one. The method `kept`
        of the plan returns these results by their index, in the order of calls."""
        self._recorder.keep(tensor)

    def finish(self, output: Any, shared: Any = None) -> Any:
        """Return the plan that computes `output`. Its method `run(tokens, positions, slots,
        query_starts, context_lens, block_tables, sample_rows, further)` returns `output`, valid
        until the next run; `plan_arguments` returns these arguments.

        `shared`: a plan whose memory the new plan uses; `output` is then valid only until the next
        run of either plan.
        """
        return self._recorder.finish(self._backend.pool, output, shared)


_ELEMENTS: Final[dict[CacheDtype, str]] = {"f32": "float32", "f16": "float16", "int8": "int8"}


def new_cache(shape: tuple[int, int, int, int], dtype: str) -> LayerCache[npt.NDArray[Any]]:
    """Return a KV cache of one layer, (B, K, D, P), that holds zeros of a numpy `dtype`."""
    blocks, heads, dim, block_size = shape
    width = dim + SCALE_BYTES if dtype == "int8" else dim
    keys = np.zeros((blocks, heads, width, block_size), dtype)
    return LayerCache(keys, np.zeros((blocks, heads, block_size, width), dtype))


def _over(kernel: str, cache: LayerCache[Any]) -> str:
    """Return the name of the kernel for the elements of `cache`."""
    return f"int8_{kernel}" if cache.keys.dtype == np.int8 else kernel


def _refuse_sinks(sinks: Any) -> None:
    if sinks is not None:
        raise ValueError("sinks: are not supported together with `visible`")


def routing_numbers(routing: Routing) -> tuple[list[int], list[float]]:
    """Return the integers and the reals of the routing kernels."""
    integers = (
        SCORINGS.index(routing.scoring),
        int(routing.renormalize),
        routing.groups,
        routing.groups_per_token,
        routing.best_of_group,
    )
    return [*integers], [routing.epsilon, routing.scale, routing.jitter]


def _flat(bias: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32] | None:
    """Concatenate the biases [E, N] of all experts into one vector."""
    return None if bias is None else np.ascontiguousarray(bias).reshape(-1)


def _columns(x: Any) -> int:
    return int(x.shape[1])
