"""The tensors that a step passes to ops beside activations and weights: inputs and KV caches.

`ops_interface` defines the letters of the dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from penstock.kernels.recurrent_state import StateRows

Tensor = TypeVar("Tensor")
CacheDtype: TypeAlias = Literal["f32", "f16", "int8"]
SCALE_BYTES: Final = 4
"""Bytes of the scale of a key or value in an int8 cache."""


@dataclass(frozen=True, slots=True)
class AdapterRows(Generic[Tensor]):
    """The tokens (or sampled rows) of a step that have an adapter, grouped by adapter slot, as
    int32 tensors.

    The tokens order[starts[g] : starts[g + 1]] have the adapter in slots[g]. No slot occurs in two
    groups, and no token occurs twice. `order` past the last start and `slots` of empty groups are
    undefined.
    """

    slots: Tensor  # [R] adapter slot of each group
    order: Tensor  # [T] indices of tokens, or [S] of sampled rows
    starts: Tensor  # [R + 1] index in `order` of the first token of each group


@dataclass(frozen=True, slots=True)
class MediaRows(Generic[Tensor]):
    """The tokens of a step whose embeddings come from images, videos or recordings.

    `index`: [T] int32, the row of `rows` for each token; negative for a token of the vocabulary.
    `rows`: [M, W] float32, the embeddings. Rows that `index` does not name are undefined.
    `deep`: one [M, W] per layer, added to the hidden states after the first layers (DeepStack).
    `rope_positions`: three [T] int32 (time, height, width) for a model with multi-dimensional
    positions, else ().
    `rope_rows`: [T] int32, 0 to T - 1, the rows of the table that `mrope_rows` returns; given with
    `rope_positions`.
    `visible`: [T] int32, the number of leading tokens of its sequence that each token attends to,
    at least up to itself, at most all that the step computes, and never descending in a chunk;
    None: up to and including the token itself. Tokens with the same number, all in one chunk, see
    each other even outside the window of a layer.
    """

    index: Tensor
    rows: Tensor
    deep: tuple[Tensor, ...] = ()
    rope_positions: tuple[Tensor, ...] = ()
    rope_rows: Tensor | None = None
    visible: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[Tensor]):
    """The inputs of a step, as int32 tensors. The chunk of row r consists of the tokens
    query_starts[r] : query_starts[r + 1], the last tokens of the row's context."""

    tokens: Tensor  # [T] token ids
    positions: Tensor  # [T] position of each token in its sequence
    slots: Tensor  # [T] slot of the token's key and value in the cache: block * P + offset
    query_starts: Tensor  # [R + 1] index of the first token of each chunk, and T
    context_lens: Tensor  # [R] tokens of the sequence, including this chunk
    block_tables: Tensor  # [R, max_blocks]; entries past the context are undefined
    sample_rows: Tensor  # [S] indices of the tokens whose logits are needed
    work: Any = None  # data that an implementation prepares once for all layers of a step
    adapters: AdapterRows[Tensor] | None = None  # groups of tokens; None: no adapters
    sampled_adapters: AdapterRows[Tensor] | None = None  # the same groups, of sampled rows
    media: MediaRows[Tensor] | None = None  # None: no token of the step belongs to media
    states: StateRows[Tensor] | None = None  # None: the model has no recurrent layers
    is_prompt: Tensor | None = None  # [T] 1 for a prompt token, 0 for a generated one; None: alike
    sampled_is_prompt: Tensor | None = None  # [S] the same of the tokens of `sample_rows`


@dataclass(frozen=True, slots=True)
class LayerCache(Generic[Tensor]):
    """The paged KV cache of one layer. On a CPU: float16, float32 or int8, contiguous.

    Keys are transposed inside a block: a vector holds the same component of P keys, so that a score
    needs no horizontal sum. Values are not transposed: a vector holds components of one value. On a
    GPU the shapes are the same and the strides differ: see `kernels.gpu_kv_cache`.

    In int8 (CPU only), keys [B, K, D + 4, P] and values [B, K, P, D + 4] hold for each KV block and
    head D * P elements, then P float32 scales: a number is its element times the scale of its
    token. The elements are in pairs, the operands of integer products: [D / 2, P, 2] keys, two
    components of a key, and [P / 2, D, 2] values, one component of two values.
    """

    keys: Tensor  # [B, K, D, P]
    values: Tensor  # [B, K, P, D]
    key_scales: Tensor | None = None  # [K] float32, only for 8-bit floats
    value_scales: Tensor | None = None  # [K]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of each head of q and k before the rotation (Qwen3).

    `q_weight`, `k_weight`: [D] float32.
    `eps`: added to the mean square.
    """

    q_weight: Any
    k_weight: Any
    eps: float
