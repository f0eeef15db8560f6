"""What an encoder is, as data: every difference between its families is a field here.

The definition of the computation (`encoder.py`) reads nothing else; families only differ in how
they fill an `EncoderSpec`, and in the names of their tensors (`encoder_names.py`).
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
    """Sizes are counts of elements; `ff` is the feed-forward width. `windows`: for each layer how
    far a token sees to both sides, its own place counted, or 0 for everything.

    Positions are told by any of: `positions` rows of a table (0: none), of which position p reads
    row p + `position_offset`; `rope`, of the layers that see everything, and `local_rope` of those
    with a window (None: the same); `relative_buckets` of distances, each with a bias on the scores
    of a head. `token_types` 0: no such table. `segments` 2: types tell two texts apart, and a token
    of the second one at position p counts as one at p + the context; else all are of type 0.

    What attention and feed-forward give is added to their input and normalised; `pre_norm`: the
    next addition is to the sum, not to what was normalised. The biases: of linear layers and of
    norms. An activation `_mul` is of a gate, times a second half.
    """

    architecture: str
    width: int
    heads: int
    ff: int
    vocab: int
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
        return self.width // self.heads

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward's first matrix gives gates and what they are for."""
        return self.activation != "gelu"

    def check(self, where: str) -> None:
        """Refuse impossible sizes with a ModelError that opens with `where`."""
        limits = {
            "number of layers": (self.layers, MAX_LAYERS),
            "width": (self.width, MAX_WIDTH),
            "heads": (self.heads, MAX_WIDTH),
            "feed-forward width": (self.ff, MAX_WIDTH),
            "vocabulary": (self.vocab, MAX_VOCAB),
            "context length": (self.max_model_len, MAX_CONTEXT),
        }
        check_sizes(where, limits)
        if self.width % self.heads:
            raise ModelError(f"{where}: {self.heads} heads over a width of {self.width}")
        if not 0 <= self.token_types <= MAX_VOCAB or self.norm_eps <= 0:
            raise ModelError(f"{where}: {self.token_types} token types, norm eps {self.norm_eps}")
        for rope in (self.rope, self.local_rope):
            if rope is not None and (rope.theta <= 0 or rope.rotary_dim % 2 or rope.rotary_dim < 2):
                raise ModelError(f"{where}: rope theta {rope.theta}, {rope.rotary_dim} components")
            if rope is not None and rope.scaling is not None:
                check_scaling(rope.scaling, where)
