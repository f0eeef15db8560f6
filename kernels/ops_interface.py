"""`Ops`: the interface of tensor operations that models call.

`Ops` is generic in its tensor type: `torch.Tensor` (reference, Triton), `numpy.ndarray` (native,
eager) or `PlanTensor` (native, recorded into a plan). The implementation is chosen once, at engine
start, and a model does not know which one it uses. Activations are float32 on a CPU and bfloat16 on
a GPU: where this module says float32, a GPU computes results in float32 and rounds them to bfloat16
at the end.

Dimensions (docs/glossary.md): T tokens of the step, R rows (requests) with tokens in the step, S
sampled rows, W model width, H and K query and KV heads, D head dimension, F feed-forward width, E
experts, top_k experts per token, V vocabulary, B KV blocks, P tokens of a KV block. A matrix
product multiplies [M, C] by [N, C] transposed; C are the input columns (channels). Q is the LoRA
rank.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from penstock.kernels.block_ops import BlockOps
from penstock.kernels.latent_ops import LatentOps
from penstock.kernels.layer_graphs import LayerGraphs
from penstock.kernels.lora_slots import AdapterSlots, SlotSizes
from penstock.kernels.recurrent_ops import RecurrentOps
from penstock.kernels.routing import Routing
from penstock.kernels.step_inputs import AdapterRows, CacheDtype, HeadNorm, LayerCache, StepInputs
from penstock.kernels.weights import Experts, Linear, Matrix

Tensor = TypeVar("Tensor")


class Ops(RecurrentOps[Tensor], LatentOps[Tensor], BlockOps[Tensor], Protocol[Tensor]):
    """The tensor operations of a model. Results are new tensors, with two exceptions: `rope_cache`
    writes to the KV cache, and `lora` modifies the result of a linear layer in place.

    Each row of a result depends only on the inputs of that row, bit for bit, never on the rest of
    the batch.

    `layer_graphs`: captures the layers of towers; None: they are launched kernel by kernel.
    """

    layer_graphs: LayerGraphs | None

    def pack_linear(self, weight: Linear) -> Any:
        """Return a weight prepared for `linear`. Called once, at load."""

    def pack_head(self, weight: Linear) -> Any:
        """Return the weight of the output head prepared for `linear`, which then returns float32
        for activations of any type."""

    def pack_experts(self, weights: Experts) -> Any:
        """Return the experts of a layer prepared for `experts`. Called once, at load."""

    def pack_embedding(self, table: Matrix) -> Any:
        """Return an embedding table [V, W] prepared for `embedding`. Called once, at load."""

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        """Return a table prepared for `embedding` and, as the output head, for `linear`. Both share
        memory if possible."""

    def adapter_slots(self, sizes: SlotSizes) -> AdapterSlots:
        """Create empty adapter slots, which are an argument of `lora`."""

    def constant(self, array: Any) -> Tensor:
        """Return a numpy array (norm weights, the rope table) as a tensor of this
        implementation."""

    def new_cache(
        self,
        shape: tuple[int, int, int, int],
        dtype: CacheDtype,
    ) -> LayerCache[Tensor]:
        """Return a KV cache of one layer that holds zeros, for a model beside the decoder.

        `shape`: (B, K, D, P).
        `dtype`: the type of the elements on a CPU. On a GPU they have the type of activations.
        """

    def embedding(self, table: Any, tokens: Tensor, scale: float) -> Tensor:
        """Return the rows of the table for `tokens`, times `scale`: [T] -> [T, W] float32."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) * weight: [T, W] -> [T, W]."""

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return (rms_norm(s), s) with s = x + residual, both [T, W]."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) * weight + bias: [T, W] -> [T, W]."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return (layer_norm(s), s) with s = x + residual, both [T, W]."""

    def norm_columns(self, x: Tensor, weight: Tensor, first: int, group: int, eps: float) -> Tensor:
        """Normalize the columns `first` to `first + len(weight)` of x in place, and return x [T,
        W]: each `group` of them is replaced by rms_norm of the group with its part of `weight`."""

    def linear(self, x: Tensor, weight: Any) -> Tensor:
        """Return x @ w.T + bias: [T, C] -> [T, N] float32.

        Float weights: products are accumulated in float32. Integer weights: x is quantized to int8
        per row and group of 32 (x / (absmax / 127), rounded half to even, with the scale that fits
        these integers to x by least squares); products are summed exactly within each group of the
        weight, and groups are added in order in float32.
        """

    def linear_by_kind(self, x: Tensor, weight: Any, is_prompt: Tensor) -> Tensor:
        """Return `linear(x, weight)`, in which the rows of prompt tokens may have another
        arithmetic for integer weights: x and the dequantized weight are rounded to bfloat16, and
        products are accumulated in float32. `is_prompt`: [T] int32, 1 for a prompt token, 0 for a
        generated one.
        """

    def lora(
        self, x: Tensor, y: Tensor, slots: Any, linear: int, rows: AdapterRows[Tensor]
    ) -> Tensor:
        """Add B (A x[t]) to y[t] in place for each token t that has an adapter, and return y.

        `x`: [T, C].
        `y`: [T, N], the result of the linear layer with the number `linear`.

        Factors and products are float32, except that factors are first rounded to
        `SlotSizes.storage_dtype`.
        """

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
        and return q: [T, H * D].

        `qkv`: [T, (H + 2 K) * D].
        `rope`: [positions, rotated] float32, the cosines, then the sines, of rotated / 2 angles.
            Element i of a head is rotated together with element i + rotated / 2; elements from
            `rotated` on are not rotated (rotated <= D).
        `heads`: (H, K, D).
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
        softcap: float = 0.0,
    ) -> Tensor:
        """Compute causal attention of each token over the KV cache of its own sequence: [T, H * D]
        -> [T, H * D]. If `inputs.media` has `visible`, a token sees that many leading tokens.

        `window`: 0: all positions up to the token; w: only the last w positions; -c: positions are
            divided into chunks of c, and a token sees only its own (not together with `visible`).
        `sinks`: [H] float32; exp(sinks[h]) is added to the denominator of the softmax of head h
            (like the sink tokens of arXiv 2309.17453). Not supported together with `visible`.
        `softcap`: 0: none; c: a score s, after `scale`, becomes c * tanh(s / c) (Gemma 2).
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
        """Compute attention of each token over the whole KV cache of its own sequence: [T, H * D]
        -> [T, H * D]. A sequence must be computed in one step, since a token sees the cache at the
        time of the step.

        `window`: 0: all positions; w: only positions at a distance below w.
        `bias`: [H, 2 m + 1] float32, added to the scores after `scale`. Column m + d is for keys d
            positions after the token (d < 0: before the token); keys farther away than m use column
            0 or 2 m.
        """

    def rounded_attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
    ) -> Tensor:
        """Compute `bidirectional_attention` with queries, keys, values and softmax weights rounded
        to bfloat16 where that is faster: on a CPU over a float16 cache, for models whose weights
        are bfloat16 too. Keys and values must fit float16."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Return gelu(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""

    def route_experts(
        self,
        logits: Tensor,
        routing: Routing,
        bias: Tensor | None = None,
        expert_scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the numbers and the shares of the `top_k` chosen experts of each token, by the
        rule `routing`: [T, E] -> [T, top_k] int32, [T, top_k] float32.

        The chosen experts are in descending order of the logits or scores that chose them; among
        equals, the lower number comes first.

        `bias`: [E] float32, added to the scores for the choice, not for the shares.
        `expert_scale`: [E] float32, a factor of the share of each expert (Gemma 4). Not supported
            together with `bias`, nor with "sparsemixer".
        """

    def experts(self, x: Tensor, chosen: Tensor, shares: Tensor, weights: Any) -> Tensor:
        """Return the sum over k, in order, of shares[t, k] * down(act(gate(x[t]), up(x[t]))),
        computed by expert chosen[t, k]: `x: [T, W]`, `chosen` and `shares: [T, top_k]` -> [T, W].
        If the shares of the `Experts` scale the input, x[t] is shares[t, k] * x[t] instead, and
        the results are summed unchanged.

        act is the activation of the `Experts`. An expert is chosen at most once per token. Products
        are computed as in `linear`.
        """

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """Return gelu(gate) * up for gate_up = [gate | up], with the tanh approximation of gelu:
        [T, 2 F] -> [T, F]."""

    def gelu(self, x: Tensor) -> Tensor:
        """Return x * Phi(x), with Phi the distribution function of the normal distribution: [T, F]
        -> [T, F]."""

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """Return gelu(x) with the tanh approximation: [T, F] -> [T, F]."""

    def quick_gelu(self, x: Tensor) -> Tensor:
        """Return x / (1 + exp(-1.702 x)), the approximation of gelu that CLIP uses: [T, F] -> [T,
        F]."""

    def silu(self, x: Tensor) -> Tensor:
        """Return x / (1 + exp(-x)): [T, F] -> [T, F]."""

    def tanh(self, x: Tensor) -> Tensor:
        """Return the hyperbolic tangent of each element."""

    def replace_rows(self, x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
        """Return rows[index[t]] for each token t with index[t] >= 0, else x[t]: [T, W], [M, W], [T]
        -> [T, W]."""

    def add_rows(self, x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
        """Return x[t] + rows[index[t]] for each token t with index[t] >= 0, else x[t]: [T, W], [M,
        W], [T] -> [T, W]."""

    def mrope_rows(
        self, table: Tensor, time: Tensor, height: Tensor, width: Tensor, axis: Tensor
    ) -> Tensor:
        """Return a rope table with one row per token, for tokens with three positions: [T, 2 *
        pairs] float32.

        `table`: [positions, 2 * pairs] float32, cosines, then sines.
        `time`, `height`, `width`: [T] int32, the positions of each token.
        `axis`: [pairs] int32. Cosine and sine of pair i are those of the table at the time (0), the
            height (1) or the width (2) of the token, as axis[i] says.
        """

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return x[rows]: [T, W], [S] -> [S, W]."""

    def mean_rows(self, x: Tensor, starts: Tensor) -> Tensor:
        """Return the mean of rows starts[r] : starts[r + 1] for each r: [T, W], [R + 1] -> [R,
        W]."""

    def l2_normalize(self, x: Tensor) -> Tensor:
        """Return x / max(|x|, 1e-12) for each row x: [R, W] -> [R, W]."""
