"""Multi-head latent attention (MLA, arXiv 2405.04434) of DeepSeek V2 and V3, GLM-4.7-Flash and
Mistral 4.

The cache holds one latent per token, from which the keys and values of all heads derive, and one
rotated key part that all heads share. See `kernels.latent_ops`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar

from penstock.base.errors import ModelError
from penstock.kernels.latent_ops import LatentSizes
from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import StateShape
from penstock.kernels.weights import Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_block import LoraBlock, LoraLinear, PlacedRows, inside, whole
from penstock.models.decoder.mixer import (
    CacheSize,
    LayerTensors,
    ModelSizes,
    TakeColumns,
    Vector,
)
from penstock.models.decoder.mixers.latent_weights import (
    LatentWeights,
    Order,
    as_floats,
    halves,
    reordered,
    split_heads,
)
from penstock.models.decoder.spec_limits import MAX_WIDTH, check_sizes
from penstock.quant.weight_slices import row_range

Tensor = TypeVar("Tensor")

_STEP: Final = 8
"""Latents and rotated parts have a multiple of this many elements."""
_ABSORBED: Final = (
    "an adapter for kv_b_proj is not supported: its matrix multiplies the queries and the results"
    " of each head, never the latents"
)


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """The configuration of a latent attention. The names of its sizes in config.json are in
    parentheses.

    - `heads`: query heads.
    - `q_rank`: elements of the compressed hidden state for the queries (q_lora_rank); 0: queries
      come from the hidden state.
    - `kv_rank`: elements of a latent (kv_lora_rank).
    - `plain_dim`, `rotated_dim`: elements of a query that are not rotated (qk_nope_head_dim) and
      that are (qk_rope_head_dim).
    - `value_dim`: elements of a value (v_head_dim).
    - `scale`: the factor of the scores.
    - `norm_eps`: that of the norms of the compressed state and of the latent.
    - `biased`: the projections "q_a", "kv_a" and "out" have biases.
    - `rotation`: the order of rotated elements in the file: "pairs" (2i, 2i + 1) or "halves".
    - `form`: how the file stores the matrices of keys and values: "joined": one matrix "kv_b" with
      key and value rows of each head in turn; "split": "k_b" [H, L, N] and "v_b" [H, V, L].
    """

    heads: int
    q_rank: int
    kv_rank: int
    plain_dim: int
    rotated_dim: int
    value_dim: int
    scale: float
    norm_eps: float = 1e-6
    biased: bool = False
    rotation: Literal["pairs", "halves"] = "pairs"
    form: Literal["joined", "split"] = "joined"

    @property
    def sizes(self) -> LatentSizes:
        """The sizes that kernels need."""
        return LatentSizes(self.heads, self.kv_rank, self.rotated_dim)

    @property
    def query_dim(self) -> int:
        """Elements of a query."""
        return self.plain_dim + self.rotated_dim

    @property
    def cache(self) -> CacheSize:
        """See MixerSpec."""
        return CacheSize(1, self.kv_rank + self.rotated_dim, self.kv_rank, latent=True)

    @property
    def attention(self) -> LatentSizes:
        """See MixerSpec."""
        return self.sizes

    @property
    def state(self) -> StateShape | None:
        """None: there is no recurrent state."""
        return None

    @property
    def linears(self) -> tuple[str, ...]:
        """See MixerSpec."""
        queries = ("q_a", "q_b") if self.q_rank else ("q",)
        return (*queries, "kv_a", "out")

    @property
    def float_matrices(self) -> tuple[str, ...]:
        """The matrices of keys and values, which multiply activations of single heads."""
        return ("kv_b",) if self.form == "joined" else ("k_b", "v_b")

    def lora(self, spec: ModelSizes) -> LoraBlock:
        """See MixerSpec. The rows of modules have the order of the file."""
        width, queries = spec.hidden_size, self.heads * self.query_dim
        latents = self.kv_rank + self.rotated_dim
        linears = {"kv": LoraLinear(width, {"kv": latents})}
        if self.q_rank:
            linears["q_down"] = LoraLinear(width, {"q_down": self.q_rank})
        linears |= {
            "q": LoraLinear(self.q_rank or width, {"q": queries}),
            "out": LoraLinear(self.heads * self.value_dim, {"out": width}),
        }
        q, kv = whole("q"), whole("kv")
        if self.rotation == "pairs":
            of_q, of_kv = self._halves
            q, kv = (PlacedRows("q", of_q),), (PlacedRows("kv", of_kv),)
        targets = {"kv_a_proj_with_mqa": kv, "o_proj": whole("out")}
        targets["q_b_proj" if self.q_rank else "q_proj"] = q
        if self.q_rank:
            targets["q_a_proj"] = whole("q_down")
        refused = {"self_attn.kv_b_proj": _ABSORBED}
        return LoraBlock(linears, inside(targets, "self_attn"), refused)

    def check_sizes(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where` and names the key of
        config.json."""
        limits = {
            "num_attention_heads": (self.heads, MAX_WIDTH),
            "kv_lora_rank": (self.kv_rank, MAX_WIDTH),
            "qk_nope_head_dim": (self.plain_dim, MAX_WIDTH),
            "qk_rope_head_dim": (self.rotated_dim, MAX_WIDTH),
            "v_head_dim": (self.value_dim, MAX_WIDTH),
        }
        if self.q_rank:
            limits["q_lora_rank"] = self.q_rank, MAX_WIDTH
        check_sizes(where, limits)
        for name in ("kv_lora_rank", "qk_rope_head_dim"):
            if limits[name][0] % _STEP:
                raise ModelError(
                    f"{where}: {name} {limits[name][0]} is not supported, only multiples of {_STEP}"
                )
        if not 0 < self.scale < math.inf:
            raise ModelError(f"{where}: attention scale {self.scale} is not positive and finite")

    def check(self, spec: ModelSizes, where: str) -> None:
        """See MixerSpec."""
        self.check_sizes(where)
        if spec.rope.rotary_dim != self.rotated_dim:
            raise ModelError(
                f"{where}: qk_rope_head_dim {self.rotated_dim} is not the rotary dimension"
                f" {spec.rope.rotary_dim}"
            )
        if spec.bidirectional or spec.rope.axes:
            raise ModelError(
                f"{where}: latent attention is not supported in a bidirectional model or with mRoPE"
            )

    def shapes(self, spec: ModelSizes) -> Mapping[str, Shape]:
        """See MixerSpec."""
        width, heads, latent = spec.hidden_size, self.heads, self.kv_rank
        queries = heads * self.query_dim
        shapes: dict[str, Shape] = {
            "kv_a": (latent + self.rotated_dim, width),
            "kv_norm": (latent,),
            "out": (width, heads * self.value_dim),
        }
        if self.q_rank:
            shapes |= {"q_a": (self.q_rank, width), "q_norm": (self.q_rank,)}
            shapes["q_b"] = (queries, self.q_rank)
        else:
            shapes["q"] = (queries, width)
        if self.form == "joined":
            shapes["kv_b"] = (heads * (self.plain_dim + self.value_dim), latent)
        else:
            shapes["k_b"] = (heads, latent, self.plain_dim)
            shapes["v_b"] = (heads, self.value_dim, latent)
        if self.biased:
            shapes |= {f"{role}_bias": shapes[role][:1] for role in ("kv_a", "out")}
            if self.q_rank:
                shapes["q_a_bias"] = (self.q_rank,)
        return shapes

    def inner_columns(self, spec: ModelSizes) -> int:
        """See MixerSpec: the latents, and two successive results of queries, absorbed queries,
        attention and values."""
        latent = self.kv_rank + self.rotated_dim
        results = [
            self.q_rank,
            self.heads * self.query_dim,
            self.heads * latent,
            self.heads * self.kv_rank,
            self.heads * self.value_dim,
        ]
        return latent + max(map(sum, itertools.pairwise(results)))

    def read(self, tensors: LayerTensors, spec: ModelSizes) -> LatentWeights:
        """See MixerSpec."""
        biased = self.biased
        q_down = q_norm = None
        if self.q_rank:
            q_down = tensors.linear("q_a", bias="q_a_bias" if biased else None)
            q_norm = tensors.norm("q_norm")
        q = tensors.linear("q_b" if self.q_rank else "q")
        kv = tensors.linear("kv_a", bias="kv_a_bias" if biased else None)
        if self.rotation == "pairs":
            q, kv = map(reordered, (q, kv), self._halves)
        keys, values = self._read_heads(tensors)
        out = tensors.linear("out", bias="out_bias" if biased else None)
        return LatentWeights(q, q_down, q_norm, kv, tensors.norm("kv_norm"), keys, values, out)

    @property
    def _halves(self) -> tuple[Order, Order]:
        """The orders of the rows of queries, and of the latent and the shared part of the keys,
        that turn pairs into halves."""
        return (
            halves(self.heads, self.plain_dim, self.rotated_dim),
            halves(1, self.kv_rank, self.rotated_dim),
        )

    def _read_heads(self, tensors: LayerTensors) -> tuple[Linear, Linear]:
        """Return the matrices [L, N] and [V, L] of all heads, as floats."""
        if self.form == "split":
            keys, values = (map(as_floats, tensors.stack(role)) for role in ("k_b", "v_b"))
            return Linear(tuple(keys)), Linear(tuple(values))
        return split_heads(as_floats(tensors.matrix("kv_b")), self.heads, self.plain_dim)

    @property
    def gguf_form(self) -> LatentAttentionSpec | None:
        """See WritableMixerSpec. GGUF files have no biases, and rotated elements in pairs."""
        if self.biased or self.rotation != "pairs":
            return None
        return replace(self, form="split")

    def in_gguf(self, role: str, tensors: LayerTensors) -> Matrix | tuple[Matrix, ...] | Vector:
        """See WritableMixerSpec."""
        if role in ("k_b", "v_b"):
            keys, values = self._read_heads(tensors)
            return (keys if role == "k_b" else values).parts
        return tensors.matrix(role) if role in self.linears else tensors.array(role)

    def pack(self, weights: Any, spec: ModelSizes, ops: Ops[Tensor]) -> LatentAttention[Tensor]:
        """See MixerSpec."""
        return LatentAttention(self, weights, ops)

    def shard(self, count: int, where: str) -> LatentAttentionSpec:
        """See DivisibleMixerSpec: the heads are divided; every rank has all latents."""
        if self.heads % count:
            raise ModelError(f"{where}: heads {self.heads} cannot be divided among {count} ranks")
        return replace(self, heads=self.heads // count)

    def shard_weights(
        self, weights: Any, rank: int, count: int, columns: TakeColumns
    ) -> LatentWeights:
        """See DivisibleMixerSpec."""
        own = self.heads // count
        heads = slice(rank * own, (rank + 1) * own)
        (q,) = weights.q.parts
        queries = slice(heads.start * self.query_dim, heads.stop * self.query_dim)
        values = slice(heads.start * self.value_dim, heads.stop * self.value_dim)
        part: LatentWeights = replace(
            weights,
            q=Linear((row_range(q, queries),)),
            keys=Linear(weights.keys.parts[heads]),
            values=Linear(weights.values.parts[heads]),
            out=columns(weights.out, values, "out"),
        )
        return part

    def linear_weights(self, weights: Any) -> tuple[Linear, ...]:
        """See MixerSpec."""
        own = (weights.q, weights.kv, weights.keys, weights.values, weights.out)
        return own if weights.q_down is None else (*own, weights.q_down)


class LatentAttention(Generic[Tensor]):
    """A packed latent attention. See `LoadedMixer`."""

    def __init__(self, spec: LatentAttentionSpec, weights: LatentWeights, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._q = ops.pack_linear(weights.q)
        self._q_down, self._q_norm = None, None
        if weights.q_down is not None:
            self._q_down = ops.pack_linear(weights.q_down)
            self._q_norm = ops.constant(weights.q_norm)
        self._kv = ops.pack_linear(weights.kv)
        self._kv_norm = ops.constant(weights.kv_norm)
        self._keys = ops.pack_head_linear(weights.keys)
        self._values = ops.pack_head_linear(weights.values)
        self._out = ops.pack_linear(weights.out)

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute attention without the output projection: [T, W] -> [T, H V]."""
        spec, ops, inputs, cache = self._spec, step.ops, step.inputs, step.cache
        assert cache is not None
        ops.latent_cache(
            step.linear(x, self._kv, "kv"), self._kv_norm, step.rope, inputs, cache, spec.norm_eps
        )
        if self._q_norm is not None:
            x = ops.rms_norm(step.linear(x, self._q_down, "q_down"), self._q_norm, spec.norm_eps)
        q = step.linear(x, self._q, "q")
        if step.query_scales is not None:
            q = ops.scale_rows(q, step.query_scales, inputs.positions)
        q = ops.latent_query(q, step.rope, inputs, self._keys, spec.sizes)
        latents = ops.latent_attention(q, inputs, cache, spec.sizes, spec.scale)
        return ops.head_linear(latents, self._values)

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the output projection: [T, H V] -> [T, W]."""
        return step.linear(x, self._out, "out")
