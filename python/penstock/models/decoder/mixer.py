"""The interface of mixers: the blocks that combine the tokens of a sequence in a decoder layer.

Attention as `DecoderSpec` describes it is in `attention.py`. Every other kind is one file in
`mixers`, with a frozen dataclass that implements `MixerSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.kernels.latent_ops import LatentSizes
from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import StateShape
from penstock.kernels.weights import Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_block import LoraBlock
from penstock.models.decoder.rope_spec import RopeSpec

Tensor = TypeVar("Tensor")
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The sizes of the KV cache of one layer: number of KV heads, and elements of a key and of a
    value.

    `latent`: the cache is that of latent attention (`kernels.latent_ops`): a value is the first
    elements of its key, and a GPU stores only keys.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False

    @property
    def token_elements(self) -> int:
        """Number of elements per token, of keys and values stored apart."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def shared_elements(self) -> int:
        """Number of elements per token if the values of latents are not stored apart."""
        return self.kv_heads * self.key_dim if self.latent else self.token_elements


class ModelSizes(Protocol):
    """The settings of a model that mixers read. `DecoderSpec` implements it."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def attention_scale(self) -> float | None: ...

    @property
    def rope(self) -> RopeSpec: ...

    @property
    def bidirectional(self) -> bool: ...


class LoadedMixer(Protocol[Tensor]):
    """A mixer whose weights are packed for one kernel backend."""

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block without its last projection, for all tokens: [T, W] -> [T, C]."""
        ...

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the last projection, for all tokens or only for some: [T, C] -> [T, W]."""
        ...


class LayerTensors(Protocol):
    """Reads the tensors of one layer, or those outside of layers. A role is a key of
    `TensorNames.mixer`, `layer_parts` or `model_parts`. All methods raise ModelError naming file
    and tensor."""

    def linear(self, *roles: str, bias: str | None = None) -> Linear:
        """Return the matrices of `roles` as one linear layer, joined by rows. `bias`: role of the
        bias of all rows."""
        ...

    def matrix(self, role: str) -> Matrix:
        """Return a matrix in the type of the file."""
        ...

    def stack(self, role: str) -> tuple[Matrix, ...]:
        """Return the matrices of a tensor [E, N, C], in the type of the file. If the name contains
        {}, each matrix is a tensor of its own."""
        ...

    def array(self, role: str) -> Vector:
        """Return a tensor of any rank as float32."""
        ...

    def norm(self, role: str) -> Vector:
        """Return the weight of a norm, with `DecoderSpec.norm_offset` added."""
        ...

    def has(self, role: str) -> bool:
        """Return whether the names and the file have a tensor for `role`."""
        ...


class MixerSpec(Protocol):
    """The configuration of a mixer: a frozen dataclass that also reads and packs its weights."""

    @property
    def cache(self) -> CacheSize | None:
        """The KV cache that a layer needs, or None."""
        ...

    @property
    def state(self) -> StateShape | None:
        """The recurrent state that a layer needs, or None."""
        ...

    @property
    def attention(self) -> tuple[int, int, int] | LatentSizes | None:
        """The sizes of the attention over the KV cache: query heads, KV heads and head dimension,
        or those of a latent attention. None: there is no attention."""
        ...

    @property
    def linears(self) -> tuple[str, ...]:
        """The roles of matrices that products use, which may be quantized."""
        ...

    @property
    def float_matrices(self) -> tuple[str, ...]:
        """The roles of matrices that are stored as floats: in the type of the file, or as float16
        if the file has integers. All tensors that are neither these nor `linears` are counted as
        float32."""
        ...

    def lora(self, spec: ModelSizes) -> LoraBlock:
        """Return the linear layers that adapters may change, by the names with which
        `LoadedMixer` calls `LayerStep.linear`, and the modules of the trained model whose adapters
        change them."""
        ...

    def check(self, spec: ModelSizes, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where` and names the size."""
        ...

    def shapes(self, spec: ModelSizes) -> Mapping[str, Shape]:
        """Return the shape of each tensor in the file, by role."""
        ...

    def inner_columns(self, spec: ModelSizes) -> int:
        """Return the largest number of scratch float32 elements that one token needs."""
        ...

    def read(self, tensors: LayerTensors, spec: ModelSizes) -> Any:
        """Read the weights of one layer. Called on a reader thread."""
        ...

    def pack(self, weights: Any, spec: ModelSizes, ops: Ops[Tensor]) -> LoadedMixer[Tensor]:
        """Pack the weights that `read` returned."""
        ...

    def linear_weights(self, weights: Any) -> tuple[Linear, ...]:
        """Return the linear layers in the weights that `read` returned, to count their bytes."""
        ...


TakeColumns = Callable[[Linear, slice, str], Linear]
"""Returns consecutive columns of a linear layer, whose results on all ranks sum up to the whole
result. The last argument is the role of its tensor. Raises ModelError if the columns cut a
quantization group."""


@runtime_checkable
class DivisibleMixerSpec(MixerSpec, Protocol):
    """A mixer that can be divided among tensor parallel ranks."""

    def shard(self, count: int, where: str) -> MixerSpec:
        """Return the spec of each of `count` shards. Raises ModelError that starts with `where` and
        names the size that cannot be divided."""
        ...

    def shard_weights(self, weights: Any, rank: int, count: int, columns: TakeColumns) -> Any:
        """Return the weights of rank `rank`, of the weights that `read` returned."""
        ...


@runtime_checkable
class WritableMixerSpec(MixerSpec, Protocol):
    """A mixer in a folder whose tensors can be written as those of a GGUF file."""

    @property
    def gguf_form(self) -> MixerSpec | None:
        """The same block in a GGUF file; None if the folder's form cannot be written."""
        ...

    def in_gguf(self, role: str, tensors: LayerTensors) -> Matrix | tuple[Matrix, ...] | Vector:
        """Return the tensor that has `role` in a GGUF file, from the tensors of a layer of the
        folder: a matrix, the matrices of a stack, or numbers."""
        ...
