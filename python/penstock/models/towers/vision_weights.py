"""The names of a vision transformer's tensors, and how its weights are read from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.towers.tower_weights import (
    Floats,
    TowerTensors,
    WeightType,
    find_root,
    tower_linear,
)
from penstock.models.towers.vision_spec import VisionSpec
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.weight_slices import take_rows

LIMITS = ("input_min", "input_max", "output_min", "output_max")


@dataclass(frozen=True, slots=True)
class VisionNames:
    """The names of a vision transformer's tensors. Names of norms and linear layers lack `.weight`
    and `.bias`; all others are complete.

    - `roots`: the prefixes that may precede every name.
    - `layer`: the prefix of all names of one layer; {} is the layer's index.
    - `qkv`, `up`: the tensors that are stacked by rows: q, k and v, or gate and up.
    - `attention_norm`, `mlp_norm`: the norms before attention and before the feed-forward.
    - `attention_post_norm`, `mlp_post_norm`: the norms of a layer's results.
    - `attention_scale`, `mlp_scale`: the factors of a layer's results.
    - `limit_shape`: the shape of the limits of clipped matrices.
    - `class_token_dims`, `positions_dims`: dimensions of size 1 before those of the tensor.
    """

    roots: tuple[str, ...]
    patch: str
    layer: str
    attention_norm: str
    qkv: tuple[str, ...]
    output: str
    mlp_norm: str
    up: tuple[str, ...]
    down: str
    class_token: str = ""
    class_token_dims: tuple[int, ...] = ()
    positions: str = ""
    positions_dims: tuple[int, ...] = ()
    embedding_norm: str = ""
    final_norm: str = ""
    q_norm: str = ""
    k_norm: str = ""
    attention_post_norm: str = ""
    mlp_post_norm: str = ""
    attention_scale: str = ""
    mlp_scale: str = ""
    limit_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TowerNorm:
    """The weight and bias of a norm, [W] each. `bias`: None for RMSNorm."""

    weight: Floats
    bias: Floats | None


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer. `limits`: least and greatest input, least and greatest output; None: its
    inputs and outputs are not clipped."""

    linear: Linear
    limits: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class VisionLayerWeights:
    """The weights of one layer. `qkv`: q, k and v fused. `up`: gate and up fused, or only up. With
    clipped matrices, the parts are not fused."""

    attention_norm: TowerNorm
    qkv: tuple[Product, ...]
    output: tuple[Product, ...]
    mlp_norm: TowerNorm
    up: tuple[Product, ...]
    down: tuple[Product, ...]
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    attention_post_norm: TowerNorm | None = None
    mlp_post_norm: TowerNorm | None = None
    attention_scale: Floats | None = None
    mlp_scale: Floats | None = None


class VisionWeights:
    """Reads the weights that `spec` requires from `checkpoint`. `dtype`: see `TowerTensors`. Raises
    ModelError naming a tensor that is missing or has a wrong shape."""

    def __init__(
        self, checkpoint: Checkpoint, names: VisionNames, spec: VisionSpec, dtype: WeightType
    ) -> None:
        self._names = names
        self._spec = spec
        root = find_root(names.roots, f"{names.patch}.weight", checkpoint)
        self._tensors = TowerTensors(checkpoint, root, vision_shapes(names, spec), dtype)

    @property
    def size_bytes(self) -> int:
        """The bytes of the tensors in memory."""
        return self._tensors.size_bytes

    def patch(self) -> Linear:
        """Return the patch embedding as a linear layer over flattened patches."""
        spec, name = self._spec, self._names.patch
        matrix = self._tensors.flattened(f"{name}.weight")
        if len(spec.patch_shape) == 3:
            stored = matrix.data.reshape(-1, *spec.patch_shape)
            ordered = np.ascontiguousarray(stored.transpose(0, 2, 3, 1)).reshape(len(stored), -1)
            matrix = Dense(ordered, matrix.dtype)
        bias = self._tensors.vector(f"{name}.bias") if spec.patch_bias else None
        return tower_linear((matrix,), bias)

    def class_token(self) -> Floats | None:
        """Return the row that precedes the patches, [W]."""
        return self._tensors.vector(self._names.class_token) if self._spec.class_token else None

    def positions(self) -> Floats | None:
        """Return the learned position table, [positions, W]."""
        rows = self._spec.positions
        return self._tensors.table(self._names.positions, rows) if rows else None

    def embedding_norm(self) -> TowerNorm | None:
        """Return the norm of the embeddings."""
        return self._norm(self._names.embedding_norm) if self._spec.embedding_norm else None

    def final_norm(self) -> TowerNorm | None:
        """Return the norm of the last layer's result."""
        return self._norm(self._names.final_norm) if self._spec.final_norm else None

    def layer(self, index: int) -> VisionLayerWeights:
        """Read the weights of layer `index`."""
        names, spec, tensors = self._names, self._spec, self._tensors
        layer = names.layer.format(index)
        scaled, normed, sandwiched = spec.layer_scale, spec.qk_norm, spec.post_norms
        heads = spec.head_norms
        return VisionLayerWeights(
            attention_norm=self._norm(layer + names.attention_norm),
            qkv=self._products(layer, names.qkv, biased=spec.qkv_bias),
            output=self._products(layer, (names.output,), biased=spec.output_bias),
            mlp_norm=self._norm(layer + names.mlp_norm),
            up=self._products(layer, names.up, biased=spec.mlp_bias),
            down=self._products(layer, (names.down,), biased=spec.mlp_bias),
            q_norm=self._head_norm(layer + names.q_norm) if normed or heads else None,
            k_norm=self._head_norm(layer + names.k_norm) if normed or heads else None,
            attention_post_norm=(
                self._norm(layer + names.attention_post_norm) if sandwiched else None
            ),
            mlp_post_norm=self._norm(layer + names.mlp_post_norm) if sandwiched else None,
            attention_scale=tensors.vector(layer + names.attention_scale) if scaled else None,
            mlp_scale=tensors.vector(layer + names.mlp_scale) if scaled else None,
        )

    def _products(self, layer: str, names: tuple[str, ...], *, biased: bool) -> tuple[Product, ...]:
        """Return the linear layers `names`, as one unless they are clipped."""
        tensors, spec = self._tensors, self._spec
        if not spec.clipped and not (spec.axis_pairs and names == self._names.qkv):
            return (Product(tensors.linear([layer + name for name in names], biased=biased)),)
        products = []
        for name in names:
            linear = tensors.linear([layer + name], biased=biased)
            if spec.axis_pairs and name in self._names.qkv[:2]:
                order = _axis_order(spec.num_heads, spec.head_dim)
                linear = tower_linear((take_rows(linear.parts[0], order),), linear.bias)
            limits = self._limits(layer + name) if spec.clipped else None
            products.append(Product(linear, limits))
        return tuple(products)

    def _limits(self, name: str) -> tuple[float, float, float, float]:
        root = _limits_root(name)
        least, most, lowest, highest = (
            float(self._tensors.vector(f"{root}.{limit}")[0]) for limit in LIMITS
        )
        return least, most, lowest, highest

    def _head_norm(self, name: str) -> Floats:
        weight = self._tensors.vector(f"{name}.weight")
        if not self._spec.axis_pairs:
            return weight
        return weight[_axis_order(1, self._spec.head_dim)]

    def _norm(self, name: str) -> TowerNorm:
        biased = self._spec.norm == "layer"
        bias = self._tensors.vector(f"{name}.bias") if biased else None
        return TowerNorm(self._tensors.vector(f"{name}.weight"), bias)


def vision_shapes(names: VisionNames, spec: VisionSpec) -> dict[str, Shape]:
    """Return the name, without root, and the shape of every required tensor."""
    width = spec.hidden_size
    shapes: dict[str, Shape] = {f"{names.patch}.weight": (width, *spec.patch_shape)}
    if spec.patch_bias:
        shapes[f"{names.patch}.bias"] = (width,)
    if spec.class_token:
        shapes[names.class_token] = (*names.class_token_dims, width)
    if spec.positions:
        shapes[names.positions] = (*names.positions_dims, spec.positions, width)
    norms = [names.embedding_norm] * spec.embedding_norm + [names.final_norm] * spec.final_norm
    for index in range(spec.layers):
        layer = names.layer.format(index)
        norms += [layer + names.attention_norm, layer + names.mlp_norm]
        if spec.post_norms:
            norms += [layer + names.attention_post_norm, layer + names.mlp_post_norm]
        shapes |= {layer + name: shape for name, shape in _layer_shapes(names, spec).items()}
    for name in norms:
        shapes[f"{name}.weight"] = (width,)
        if spec.norm == "layer":
            shapes[f"{name}.bias"] = (width,)
    return shapes


def _layer_shapes(names: VisionNames, spec: VisionSpec) -> dict[str, Shape]:
    """Return the names and shapes of a layer's tensors except those of norms before the blocks."""
    width, inner = spec.hidden_size, spec.intermediate_size
    up = inner * 2 if spec.gated else inner
    linears = dict.fromkeys(names.qkv, (3 * width // len(names.qkv), width, spec.qkv_bias))
    linears[names.output] = (width, width, spec.output_bias)
    linears |= dict.fromkeys(names.up, (up // len(names.up), width, spec.mlp_bias))
    linears[names.down] = (width, inner, spec.mlp_bias)
    shapes: dict[str, Shape] = {}
    for name, (rows, columns, biased) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if biased:
            shapes[f"{name}.bias"] = (rows,)
        if spec.clipped:
            shapes |= {f"{_limits_root(name)}.{limit}": names.limit_shape for limit in LIMITS}
    if spec.qk_norm or spec.head_norms:
        normed = width if spec.qk_norm else spec.head_dim
        shapes |= {f"{name}.weight": (normed,) for name in (names.q_norm, names.k_norm)}
    if spec.layer_scale:
        shapes |= dict.fromkeys((names.attention_scale, names.mlp_scale), (width,))
    return shapes


def _limits_root(name: str) -> str:
    """Return the name that the limits of a clipped matrix have in common."""
    return name.removesuffix(".linear")


def _axis_order(heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Return the order of rows, [heads * head_dim], that brings the pairs of both axes, each in
    halves, to the halves of the whole head."""
    quarters = np.arange(head_dim).reshape(2, 2, -1).swapaxes(0, 1).reshape(-1)
    order: npt.NDArray[np.intp] = (np.arange(heads)[:, None] * head_dim + quarters).reshape(-1)
    return order
