"""The configuration of an encoder: every difference between model families is a field here.

The forward pass (`encoder.py`) reads nothing else. Families differ only in how they fill an
`EncoderSpec`, and in the names of their tensors (`tensor_names.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    RopeSpec,
    check_scaling,
    check_sizes,
)

Activation: TypeAlias = Literal["gelu", "gelu_mul", "silu_mul"]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder. Sizes are counts of elements. `intermediate_size`: the width of the feed-forward.
    `windows`: for each layer, how far a token attends to either side, its own position included; 0:
    full attention.

    Positions are encoded by any of: a table with `positions` rows (0: none), in which position p
    has row p + `position_offset`; `rope`, in layers with full attention, and `local_rope` in layers
    with a window (None: the same); `relative_buckets` of distances, each with a bias on the scores
    of each head. `token_types` 0: no such table. `segments` 2: the types mark the two texts of a
    pair, and a token of the second text at position p has position p + `max_model_len`; 1: all
    tokens have type 0.

    The results of attention and feed-forward are added to their input and normalized. `pre_norm`:
    the residual is the sum, not the normalized sum. Activations `_mul` multiply the activated first
    half (gate) by the second half.
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
    activation: Activation = "gelu"
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True

    @property
    def head_dim(self) -> int:
        """The head dimension."""
        return self.hidden_size // self.num_heads

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.windows)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward's first matrix computes a gate too."""
        return self.activation != "gelu"

    def check(self, where: str) -> None:
        """Raise ModelError that starts with `where` for impossible sizes."""
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
            raise ModelError(f"{where}: {self.num_heads} heads over a width of {self.hidden_size}")
        if not 0 <= self.token_types <= MAX_VOCAB or self.norm_eps <= 0:
            raise ModelError(f"{where}: {self.token_types} token types, norm eps {self.norm_eps}")
        for rope in (self.rope, self.local_rope):
            if rope is not None and (rope.theta <= 0 or rope.rotary_dim % 2 or rope.rotary_dim < 2):
                raise ModelError(f"{where}: rope theta {rope.theta}, {rope.rotary_dim} components")
            if rope is not None and rope.scaling is not None:
                check_scaling(rope.scaling, where)
