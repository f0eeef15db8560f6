"""`Ops`, the one interface of tensor operations over which models are written.

`Ops` is generic in its tensor: `torch.Tensor` (reference, Triton), `numpy.ndarray` (native, eager)
or `PlanTensor` (native, recorded into a plan). The implementation is chosen once, at engine start;
a model does not know which one it is. Activations are float32 on a CPU and bfloat16 on a GPU: a GPU
computes results that are float32 below in float32, and rounds them at the end.

Dimensions (docs/glossary.md): T tokens of the step, R rows (requests) with tokens in the step, S
sampled rows, W model width, H and K query and KV heads, D head dimension, F feed-forward width, E
experts, top_k experts per token, V vocabulary, B cache blocks, P tokens of a block. A product
multiplies [M, C] by [N, C] transposed; C are the input columns (channels). Q is the LoRA rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from penstock.kernels.lora_slots import AdapterSlots, SlotSizes
from penstock.kernels.weights import Experts, Linear, Matrix

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class AdapterRows(Generic[Tensor]):
    """The rows of a step that have an adapter, as int32 tensors: rows order[starts[g] : starts[g +
    1]] have the adapter in slots[g]. No slot occurs in two groups, and no row twice. `order` past
    the last start and `slots` of empty groups are undefined."""

    slots: Tensor  # [R]
    order: Tensor  # [T], or [S]
    starts: Tensor  # [R + 1]


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[Tensor]):
    """The tokens of a step, as int32 tensors. Chunk r is tokens query_starts[r] : query_starts[r +
    1], the last ones of its context."""

    tokens: Tensor  # [T] token ids
    positions: Tensor  # [T] position of each token in its sequence
    slots: Tensor  # [T] slot of the token's key and value in the cache: block * P + offset
    query_starts: Tensor  # [R + 1]
    context_lens: Tensor  # [R] tokens of the sequence, including this chunk
    block_tables: Tensor  # [R, max_blocks]; entries past the context are undefined
    sample_rows: Tensor  # [S] indices of the tokens whose logits are needed
    work: Any = None  # data that an implementation prepared once for all layers of this step
    adapters: AdapterRows[Tensor] | None = None  # of the tokens; None: no row has an adapter
    sampled_adapters: AdapterRows[Tensor] | None = None  # of the sampled rows, in the same groups


@dataclass(frozen=True, slots=True)
class LayerCache(Generic[Tensor]):
    """The paged KV cache of one layer: on a CPU float16 or float32, contiguous.

    Keys are transposed inside a block, so that one vector holds the same component of P keys and a
    score needs no horizontal sum; values are not, so that an output vector holds components. On a
    GPU the shapes are the same and the strides differ: see `kernels.gpu_kv_cache`.
    """

    keys: Tensor  # [B, K, D, P]
    values: Tensor  # [B, K, P, D]
    key_scales: Tensor | None = None  # [K] float32, only for 8-bit floats
    value_scales: Tensor | None = None  # [K]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm over each head of q and of k before the rotation (Qwen3). Weights: [D] float32."""

    q_weight: Any
    k_weight: Any
    eps: float


class Ops(Protocol[Tensor]):
    """The tensor operations of a model. Results are new tensors; only `rope_cache` modifies an
    argument, the cache, and `lora` the result of a linear layer.

    A row of a result depends only on the inputs of that row, bit for bit: never on the batch.
    """

    def pack_linear(self, weight: Linear) -> Any:
        """Prepare a weight once, at load. The result is an argument of `linear`."""

    def pack_head(self, weight: Linear) -> Any:
        """Prepare the weight of the output head: its `linear` is float32 whatever the type of
        activations."""

    def pack_experts(self, weights: Experts) -> Any:
        """Prepare the experts of a layer once, at load. The result is an argument of `experts`."""

    def pack_embedding(self, table: Matrix) -> Any:
        """Prepare an embedding table [V, W] once, at load. The result is an argument of
        `embedding`."""

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        """Prepare a table for `embedding` and as the head for `linear`, in one memory if
        possible."""

    def adapter_slots(self, sizes: SlotSizes) -> AdapterSlots:
        """Create empty slots for adapters. The result is an argument of `lora`."""

    def constant(self, array: Any) -> Tensor:
        """Return a numpy array (norm weights, the rope table) as a tensor of this
        implementation."""

    def embedding(self, table: Any, tokens: Tensor, scale: float) -> Tensor:
        """Rows of the table times `scale`: [T] -> [T, W] float32."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight: [T, W] -> [T, W]."""

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """s = x + residual; returns (rms_norm(s), s)."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x - mean) / sqrt(variance + eps) * weight + bias: [T, W] -> [T, W]."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """s = x + residual; returns (layer_norm(s), s)."""

    def linear(self, x: Tensor, weight: Any) -> Tensor:
        """x @ w.T + bias: [T, C] -> [T, N] float32.

        Float weights: float32 accumulation. Integer weights: x is quantized per row and group of 32
        to int8, symmetric: the integers of x / (absmax / 127), half to even, with the scale that
        fits them best; products are summed exactly per weight group; groups are summed in order in
        float32.
        """

    def lora(
        self, x: Tensor, y: Tensor, slots: Any, linear: int, rows: AdapterRows[Tensor]
    ) -> Tensor:
        """y[t] += B (A x[t]) for rows with an adapter, in place: x [T, C], y [T, N] the result of
        the linear layer with the number `linear`. Factors and products are float32, except for the
        rounding of `SlotSizes.storage_dtype`. Returns y."""

    def rope_cache(
        self,
        qkv: Tensor,
        rope: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        heads: tuple[int, int, int],
        head_norm: HeadNorm | None,
    ) -> Tensor:
        """Normalise (unless `head_norm` is None) and rotate q and k, store k and v in the cache,
        return q.

        `qkv: [T, (H + 2 K) * D]`, `heads` = (H, K, D), `rope: [positions, rotated]` float32:
        cosines then sines of the rotated half-dimensions, so rotated <= D and element i pairs with
        i + rotated / 2; components past `rotated` are not rotated. Returns [T, H * D].
        """

    def attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of each token over its own sequence's cache: [T, H * D] -> [T, H * D].

        `window` 0: all positions up to the token's own; w: only the last w of them. `sinks: [H]`
        float32: exp(sinks[h]) is an additional term of the sum that head h divides by (arXiv
        2309.17453 has such terms as tokens).
        """

    def bidirectional_attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attention of each token over all of its own sequence's cache: [T, H * D] -> [T, H * D].

        `window` 0: all positions; w: those at a distance below w. `bias: [H, distances]` float32,
        with distances = 2 m + 1, is added to the scores after `scale`: column m + d to that of a
        key d positions after the token, -d before it; keys farther than m have the bias of m.
        Sequences are computed whole: a token sees the cache as it is when the step runs.
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """gelu(gate) * up: [T, 2 F] -> [T, F]."""

    def route_experts(self, logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
        """Return the `top_k` experts of each token and their shares: [T, E] -> two [T, top_k],
        int32 and float32. The experts have the largest logits, in descending order, the lower
        number first among equals. A share is the softmax over all E; with `renormalize`, over the
        chosen experts only.
        """

    def experts(self, x: Tensor, chosen: Tensor, shares: Tensor, weights: Any) -> Tensor:
        """sum over k of shares[t, k] * down(act(gate(x[t]), up(x[t]))) by expert chosen[t, k], k in
        order: [T, W], [T, top_k], [T, top_k] -> [T, W]; act: the activation of the `Experts`. No
        expert is chosen twice for a token. Products are as in `linear`."""

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """gelu(gate) * up with the tanh form of gelu: [T, 2 F] -> [T, F]."""

    def gelu(self, x: Tensor) -> Tensor:
        """x Phi(x), Phi the distribution function of the normal distribution."""

    def tanh(self, x: Tensor) -> Tensor:
        """The hyperbolic tangent."""

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """x[rows]: [T, W], [S] -> [S, W]."""

    def mean_rows(self, x: Tensor, starts: Tensor) -> Tensor:
        """Mean of rows starts[r] : starts[r + 1]: [T, W], [R + 1] -> [R, W]."""

    def l2_normalize(self, x: Tensor) -> Tensor:
        """x / max(|x|, 1e-12), row by row: [R, W] -> [R, W]."""
