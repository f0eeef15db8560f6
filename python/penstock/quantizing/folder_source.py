"""A Hugging Face folder as a GGUF file would have it: names of tensors, order of rows, metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Matrix
from penstock.models.decoder.head_rows import deinterleaved_rows
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, TensorNames
from penstock.models.families import registry
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.folder_tensors import folder_names
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.gguf.gguf_layout import pair
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from penstock.quant.weight_slices import take_rows
from penstock.quantizing.folder_tokenizer import tokenizer_values
from penstock.quantizing.sources import Floats, pieces

_PARTS: Final = ("embedding", "final_norm", "head")
_LAYER_PARTS: Final = (
    *("attention_norm", "q", "k", "v", "output", "q_norm", "k_norm"),
    *("mlp_norm", "gate", "up", "down"),
)
_FLOAT_TYPES: Final = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class GgufForm:
    """A family's form in GGUF files.

    - `architecture`: `general.architecture`.
    - `splits`: the names of pre-tokenizers that its models have.
    - `permuted_qk`: rows of q and k are in the order of neighbouring components.
    """

    architecture: str
    splits: tuple[str, ...]
    permuted_qk: bool = False


_LLAMA: Final = GgufForm("llama", ("llama-bpe", "smollm", "tekken", "gpt-2"), permuted_qk=True)
FORMS: Final[Mapping[str, GgufForm]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": GgufForm("qwen2", ("qwen2",)),
    "qwen3": GgufForm("qwen3", ("qwen2",)),
}
"""The families whose folders are written as GGUF: `DecoderSpec.architecture` -> form."""


class FolderAsGguf:
    """The folder of a model whose family is in FORMS, as a Source."""

    def __init__(self, files: ModelFiles) -> None:
        """Open the folder. Raises ModelError naming the family, the tensor or the setting that
        cannot be written as GGUF."""
        self.path = files.path
        if registry.multimodal_architecture_of_folder(files.path) is not None:
            raise ModelError(f"{files.path}: multimodal folders are not written as GGUF yet")
        self._spec = registry.spec_of_folder(files.path)
        form = FORMS.get(self._spec.architecture)
        if form is None:
            known = ", ".join(FORMS)
            raise ModelError(
                f"{files.path}: the family {self._spec.architecture} is not written as GGUF yet,"
                f" only {known}; an output that does not end in .gguf is a folder"
            )
        self._form = form
        if self._spec.rope.scaling is not None:
            kind = type(self._spec.rope.scaling).__name__
            raise ModelError(f"{files.path}: {kind} of RoPE is not written as GGUF yet")
        self._checkpoint = open_checkpoint(files.path, "bf16")
        names = folder_names(self._spec, self._checkpoint, None)
        self._own = self._names(names, GGUF_NAMES)
        self._orders = self._row_orders()
        self.tensors: Mapping[str, TensorInfo] = {name: self._info(name) for name in self._own}
        self._values = _sizes(self._spec, form.architecture) | tokenizer_values(
            files, form.splits, self._spec.vocab_size
        )
        self._values["general.name"] = files.model_id

    def pairs(self) -> dict[str, bytes]:
        """See Source."""
        values = {"general.architecture": self._form.architecture} | self._values
        return {key: pair(key, value) for key, value in values.items()}

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """See Source."""
        if len(self.tensors[name].shape) == 1:
            vector = self._checkpoint.vector(self._own[name])
            order = self._orders.get(name)
            return (vector if order is None else vector[order]).view(np.uint8)
        matrix = self._matrix(name)
        assert isinstance(matrix, Dense)
        return np.ascontiguousarray(matrix.data).view(np.uint8).reshape(-1)

    def rows(self, name: str) -> Iterator[tuple[int, Floats]]:
        """See Source."""
        return ((0, rows) for rows in pieces(self._matrix(name)))

    def _matrix(self, name: str) -> Matrix:
        matrix = self._checkpoint.matrix(self._own[name])
        order = self._orders.get(name)
        return matrix if order is None else take_rows(matrix, order)

    def _info(self, name: str) -> TensorInfo:
        own = self._own[name]
        shape = self._checkpoint.tensors[own].shape if own in self._checkpoint.tensors else ()
        if len(shape) == 1:
            return TensorInfo(name, shape, "F32", 0, 4 * shape[0])
        matrix = self._checkpoint.matrix(own)
        rows, columns = matrix.shape
        if isinstance(matrix, Dense):
            kind = _FLOAT_TYPES[matrix.dtype]
            return TensorInfo(name, (rows, columns), kind, 0, int(matrix.data.nbytes))
        info = self._checkpoint.tensors[own]
        return TensorInfo(name, (rows, columns), info.type_name, 0, info.size_bytes)

    def _names(self, names: TensorNames, gguf: TensorNames) -> dict[str, str]:
        """Return the tensors that exist: name in a GGUF file -> name in the folder. Raises
        ModelError for a tensor without a name in GGUF files."""
        pairs = [(getattr(gguf, part), getattr(names, part)) for part in _PARTS]
        for index in range(len(self._spec.layers)):
            prefixes = gguf.layer.format(index), names.layer.format(index)
            for part in _LAYER_PARTS:
                pairs.append(
                    (prefixes[0] + getattr(gguf, part), prefixes[1] + getattr(names, part))
                )
        existing = self._checkpoint.tensors
        found = {
            f"{new}.{ending}": f"{old}.{ending}"
            for new, old in pairs
            for ending in ("weight", "bias")
            if f"{old}.{ending}" in existing
        }
        if self._spec.tied_head:
            found.pop(f"{gguf.head}.weight", None)
        known = {*found.values(), f"{names.head}.weight"}
        for name in existing:
            if name not in known and not name.endswith("rotary_emb.inv_freq"):
                raise ModelError(f"{self.path}: {name}: has no name in GGUF files")
        return found

    def _row_orders(self) -> dict[str, npt.NDArray[np.intp]]:
        """Return the order of rows of the tensors in which it differs from that of the folder."""
        if not self._form.permuted_qk or self._spec.interleaved_rope:
            return {}
        heads = {"attn_q": self._spec.num_heads, "attn_k": self._spec.num_kv_heads}
        dim, rotated = self._spec.head_dim, self._spec.rope.rotary_dim
        orders = {}
        for name in self._own:
            part = name.split(".")[-2]
            if part in heads:
                orders[name] = np.argsort(deinterleaved_rows(heads[part], dim, rotated))
        return orders


def _sizes(spec: DecoderSpec, architecture: str) -> dict[str, Any]:
    """Return the metadata of a decoder, key -> value."""
    own = {
        "block_count": len(spec.layers),
        "context_length": spec.max_model_len,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": float(spec.norm_eps),
        "rope.dimension_count": spec.rope.rotary_dim,
        "rope.freq_base": float(spec.rope.theta),
        "vocab_size": spec.vocab_size,
    }
    windows = {layer.window for layer in spec.layers} - {0}
    if windows:
        own["attention.sliding_window"] = max(windows)
    return {f"{architecture}.{key}": value for key, value in own.items()}
