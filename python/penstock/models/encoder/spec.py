"""The configuration of an encoder: every difference between model families is a field here.

The forward pass (`encoder.py`) reads nothing else. Families differ only in how they fill an
`EncoderSpec`, and in the names of their tensors (`tensor_names.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.models.decoder.rope_spec import RopeSpec, check_scaling
from penstock.models.decoder.spec_limits import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    check_sizes,
)

Activation: TypeAlias = Literal["gelu", "gelu_tanh", "quick_gelu", "gelu_mul", "silu_mul"]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """The configuration of an encoder. All sizes are counts of elements.

    - `intermediate_size`: the width of the feed-forward.
    - `max_model_len`: the model's context length in tokens.
    - `windows`: for each layer, how many positions a token attends to on either side, its own
      included; 0: full attention.
    - `positions`: the number of rows of the position embedding table; 0: no table.
    - `position_offset`: position p uses the table's row p + `position_offset`.
    - `token_types`: the number of rows of the token type table; 0: no table.
    - `segments`: 2: the token types mark the two texts of a pair, and a token of the second text at
      position p is given position p + `max_model_len`. 1: all tokens have type 0.
    - `rope`: the RoPE of the layers with full attention; None: no rotary embedding.
    - `local_rope`: the RoPE of the layers with a window; None: `rope` in all layers.
    - `relative_buckets`: the number of buckets of distances, each with a bias on the attention
      scores per head; 0: no such biases.
    - `pre_norm`: the residual is the sum before normalization; False: the normalized sum.
    - `embedding_residual`: so is the first residual: the norm of the embeddings belongs to layer 0.
    - `causal`: a token attends to no later tokens.
    - `activation`: with the suffix `_mul`, the first half of the inputs (gate) is activated and
      multiplied by the second half.
    - `attention_bias`, `mlp_bias`, `norm_bias`: whether these layers have biases.
    """

    architecture: str
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    windows: tuple[int, ...]
    norm_eps: float
    positions: int = 0
    position_offset: int = 0
    token_types: int = 0
    segments: int = 1
    rope: RopeSpec | None = None
    local_rope: RopeSpec | None = None
    relative_buckets: int = 0
    pre_norm: bool = False
    embedding_residual: bool = False
    causal: bool = False
    activation: Activation = "gelu"
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True

    @property
    def head_dim(self) -> int:
        """The number of elements of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.windows)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward's first matrix computes a gate in addition to the up
        projection."""
        return self.activation in ("gelu_mul", "silu_mul")

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where` and names the field at
        fault."""
        limits = {
            "number of layers": (self.layers, MAX_LAYERS),
            "width": (self.hidden_size, MAX_WIDTH),
            "heads": (self.num_heads, MAX_WIDTH),
            "feed-forward width": (self.intermediate_size, MAX_WIDTH),
            "vocabulary": (self.vocab_size, MAX_VOCAB),
            "context length": (self.max_model_len, MAX_CONTEXT),
        }
        check_sizes(where, limits)
        if self.hidden_size % self.num_heads:
            raise ModelError(
                f"{where}: width {self.hidden_size} cannot be divided among {self.num_heads} heads"
            )
        if not 0 <= self.token_types <= MAX_VOCAB or self.norm_eps <= 0:
            raise ModelError(
                f"{where}: token types must be in 0..{MAX_VOCAB} and norm eps above 0, not"
                f" {self.token_types} and {self.norm_eps}"
            )
        for rope in (self.rope, self.local_rope):
            if rope is not None and (rope.theta <= 0 or rope.rotary_dim % 2 or rope.rotary_dim < 2):
                raise ModelError(
                    f"{where}: rope theta must be above 0 and rotary dimension even and positive,"
                    f" not {rope.theta} and {rope.rotary_dim}"
                )
            if rope is not None and rope.scaling is not None:
                check_scaling(rope.scaling, where)
