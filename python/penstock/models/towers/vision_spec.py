"""The configuration of a vision transformer: every difference between model families is a field
here.

The forward pass (`vision_tower.py`) reads nothing else. Families differ in how they fill a
`VisionSpec`, in the names of their tensors (`vision_weights.py`), and in the rows that they feed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.models.decoder.spec_limits import MAX_LAYERS, MAX_WIDTH, check_sizes
from penstock.models.towers.piece_budget import most_rows

VisionActivation: TypeAlias = Literal[
    "gelu", "gelu_tanh", "quick_gelu", "silu_mul", "gelu_mul", "gelu_tanh_mul"
]
NormKind: TypeAlias = Literal["layer", "rms"]
HEAD_UNIT: Final = 8
"""The attention kernels take heads whose size is a multiple of this."""


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The configuration of a vision transformer with norms before its blocks. All sizes are counts
    of elements.

    - `patch_shape`: the shape of a patch in the tensor of the patch embedding, without the outputs.
      If it has three dimensions (channels, rows, columns), patches are fed in the order (rows,
      columns, channels), else in the order of the tensor.
    - `layers`: how many layers are computed. A family that uses the result of an earlier layer than
      the last sets a smaller number than the model has.
    - `patch_bias`, `qkv_bias`, `output_bias`, `mlp_bias`: whether these linear layers have biases.
    - `class_token`: a learned row precedes the patches of each image.
    - `positions`: the number of rows of the learned position table, including the class token's;
      0: no table.
    - `rotary_dim`: the elements of each head that are rotated by position; 0: none.
    - `embedding_norm`: the embeddings are normalized before the first layer.
    - `final_norm`: the result of the last layer is normalized.
    - `qk_norm`: queries and keys are normalized by RMSNorm, over all heads together.
    - `head_norms`: queries, keys and values are normalized by RMSNorm, each head by itself; values
      without weights.
    - `axis_pairs`: the checkpoint has the elements of a head that turn by the column before those
      that turn by the row, each with the pairs in halves.
    - `post_norms`: the results of attention and of the feed-forward are normalized before they are
      added.
    - `attention_scale`: factor of the scores; None: 1 / sqrt(head_dim).
    - `clipped`: the inputs and outputs of each matrix of a layer are clipped to ranges in the
      checkpoint.
    - `layer_scale`: the results of attention and of the feed-forward are multiplied by learned
      vectors.
    - `activation`: with the suffix `_mul`, the first half of the inputs (gate) is activated and
      multiplied by the second half.
    - `taps`: layers whose results are returned before that of the last layer.
    - `kinds`: for each layer, the index of its division into attention groups (`PatchRows.groups`);
      empty: all layers have division 0.
    """

    hidden_size: int
    num_heads: int
    intermediate_size: int
    layers: int
    patch_shape: tuple[int, ...]
    norm_eps: float
    norm: NormKind = "layer"
    patch_bias: bool = True
    class_token: bool = False
    positions: int = 0
    rotary_dim: int = 0
    embedding_norm: bool = False
    final_norm: bool = False
    qkv_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    qk_norm_eps: float = 1e-6
    head_norms: bool = False
    axis_pairs: bool = False
    post_norms: bool = False
    attention_scale: float | None = None
    clipped: bool = False
    layer_scale: bool = False
    activation: VisionActivation = "gelu"
    taps: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()

    @property
    def patch_columns(self) -> int:
        """The number of elements of a flattened patch."""
        return math.prod(self.patch_shape)

    @property
    def head_dim(self) -> int:
        """The number of elements of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def gated(self) -> bool:
        """Whether the feed-forward's first matrix computes a gate in addition to the up
        projection."""
        return self.activation.endswith("_mul")

    @property
    def row_operations(self) -> int:
        """The operations of a row of a layer without attention."""
        up = self.intermediate_size * (3 if self.gated else 2)
        return 2 * self.hidden_size * (4 * self.hidden_size + up)

    @property
    def piece_rows(self) -> int:
        """The rows of the largest piece of a layer."""
        return most_rows(self.row_operations)

    def scratch_bytes(self, rows: int) -> int:
        """Return the bytes of activations while `rows` rows are computed together."""
        width, piece = self.hidden_size, min(rows, self.piece_rows)
        # Residual, queries, keys and values of two layers, patches, results of the taps.
        whole = rows * (width * (6 + len(self.taps) + 1) + self.patch_columns)
        return 4 * (whole + piece * (6 * width + 3 * self.intermediate_size))

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where` and names the field at
        fault."""
        limits = {
            "vision layers": (self.layers, MAX_LAYERS),
            "vision width": (self.hidden_size, MAX_WIDTH),
            "vision heads": (self.num_heads, MAX_WIDTH),
            "vision feed-forward width": (self.intermediate_size, MAX_WIDTH),
            "elements of a patch": (self.patch_columns, MAX_WIDTH),
        }
        check_sizes(where, limits)
        if self.hidden_size % self.num_heads or self.head_dim % HEAD_UNIT:
            raise ModelError(
                f"{where}: vision width {self.hidden_size} over {self.num_heads} heads: the size of"
                f" a head must be a multiple of {HEAD_UNIT}"
            )
        if self.norm_eps <= 0:
            raise ModelError(f"{where}: vision norm eps must be above 0, not {self.norm_eps}")
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise ModelError(
                f"{where}: rotary dimension {self.rotary_dim} of the vision tower must be even and"
                f" at most {self.head_dim}"
            )
        if any(not 0 <= tap < self.layers for tap in self.taps):
            raise ModelError(
                f"{where}: the layers {self.taps} are not in 0..{self.layers - 1} of the vision"
                " tower"
            )
