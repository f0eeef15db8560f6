"""The settings of the blocks that only some decoders have, and those of attention that may differ
between the layers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """The factor on the queries at position p: 1 + strength * log(1 + floor((p + offset) /
    period))."""

    strength: float
    period: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The attention of one layer, where it differs from that of the model.

    - `num_kv_heads`, `head_dim`: None: those of the model.
    - `keys_are_values`: there is no value projection; the values are the projected keys, before
      their norm and rotation.
    - `cache_of`: the index of an earlier layer whose keys and values the layer reads; it has
      queries only. None: the layer has its own keys and values.
    - `chunk`: positions are divided into chunks of this size, and a token attends only to its own
      chunk; 0: to all chunks.
    - `unit_heads`: queries and keys are normalized per head, without weights.
    - `query_scaling`: a factor on the queries that depends on the position; None: no factor.
    """

    num_kv_heads: int | None = None
    head_dim: int | None = None
    keys_are_values: bool = False
    cache_of: int | None = None
    chunk: int = 0
    unit_heads: bool = False
    query_scaling: QueryScaling | None = None


PLAIN_ATTENTION: Final = LayerAttention()
"""The attention of a layer that does not differ from the model's."""


@dataclass(frozen=True, slots=True)
class PerLayerInputsSpec:
    """Per-layer inputs: for each layer, every token has a vector, which is the sum of an embedding
    and a projection of the token's input. Gated by the hidden state, it is added after the layer.

    - `width`: the number of elements of the vector.
    - `vocab_size`: the number of rows of the table of these embeddings.
    - `stand_in`: the token whose embedding tokens have that are in `media_tokens`, or for which the
      table has no row.
    - `media_tokens`: tokens in whose place media are.
    """

    width: int
    vocab_size: int
    stand_in: int = 0
    media_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AltUpSpec:
    """Alternating updates (AltUp): four parallel residual streams. A layer predicts all of them,
    computes the first, and corrects the others; a second, learned residual (LAuReL) goes around
    attention.

    - `laurel_rank`: the rank of the learned residual.
    - `corrects_scale`: the per-layer input reads the first stream times a learned weight.
    """

    laurel_rank: int
    corrects_scale: bool = True
