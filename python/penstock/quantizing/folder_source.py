"""A Hugging Face folder as a GGUF file would have it: names of tensors, order of rows, metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Matrix
from penstock.models.configuration.family import GgufDecoder
from penstock.models.configuration.gguf_keys import gguf_decoder_keys
from penstock.models.configuration.gguf_rope import gguf_rope_tensors
from penstock.models.decoder.mixer import WritableMixerSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.spec_difference import first_difference
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.families import registry
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.folder_tensors import open_folder_decoder
from penstock.models.loader.model_loader import gguf_weights
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.encode.recipes import KEPT
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.gguf.gguf_layout import GgufLayout, NewTensor, pair
from penstock.quant.weight_slices import row_range, take_rows
from penstock.quantizing.folder_tokenizer import tokenizer_values
from penstock.quantizing.gguf_tensors import GgufTensor, Piece, gguf_tensors
from penstock.quantizing.sources import Floats, pieces

_FLOAT_TYPES: Final = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_FLOAT32: Final = re.compile(r"ffn_gate_inp|_norm\.|conv1d|shortconv\.conv|altup_")
"""The matrices that llama.cpp needs as float32."""
_FLOAT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


class FolderAsGguf:
    """The folder of a decoder as a Source. A multimodal folder is its language model."""

    def __init__(self, files: ModelFiles) -> None:
        """Open the folder. Raises ModelError naming the family, the tensor or the setting that
        cannot be written as GGUF."""
        self.path = files.path
        spec = registry.spec_of_folder(files.path)
        family = registry.gguf_family(spec)
        if family is None or not family.is_written:
            raise ModelError(
                f"{files.path}: the family {spec.architecture} is not written as GGUF; an output"
                " that does not end in .gguf is a folder"
            )
        self._family: GgufDecoder = family
        decoder = open_folder_decoder(files.path, "bf16")
        self._spec = decoder.spec
        self._checkpoint = decoder.unfused
        self._weights = DecoderWeights(decoder.unfused, decoder.names, decoder.spec, "auto")
        self._made = gguf_tensors(decoder, family)
        self._factors = gguf_rope_tensors(decoder.spec.rope)
        infos = map(self._info, self._made.values())
        self.tensors: Mapping[str, TensorInfo] = {info.name: info for info in infos} | {
            name: TensorInfo(name, values.shape, "F32", 0, values.nbytes)
            for name, values in self._factors.items()
        }
        self.notes: tuple[str, ...] = ()
        if decoder.container is not None:
            self.notes = (f"only the language model of {decoder.container} is written",)
        keys = gguf_decoder_keys(decoder.spec) | dict(family.keys(decoder.spec))
        self._values: dict[str, Any] = {
            "general.architecture": family.architecture,
            "general.name": files.model_id,
            **{f"{family.architecture}.{key}": value for key, value in keys.items()},
            **tokenizer_values(files, decoder.spec.vocab_size),
        }
        self._check()

    def pairs(self) -> dict[str, bytes]:
        """See Source."""
        return {key: pair(key, value) for key, value in self._values.items()}

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """See Source."""
        if name in self._factors:
            return self._factors[name].view(np.uint8)
        tensor = self._made[name]
        if not tensor.is_matrix:
            return self._numbers(tensor).view(np.uint8).reshape(-1)
        wide = self.tensors[name].type_name == "F32"
        parts = []
        for matrices in self._matrices(tensor):
            for matrix in matrices:
                data = dequantize(matrix) if wide else _dense(matrix).data
                parts.append(np.ascontiguousarray(data).view(np.uint8).reshape(-1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rows(self, name: str) -> Iterator[tuple[int, Floats]]:
        """See Source."""
        for index, matrices in enumerate(self._matrices(self._made[name])):
            for matrix in matrices:
                yield from ((index, rows) for rows in pieces(matrix))

    def _numbers(self, tensor: GgufTensor) -> Floats:
        """Return a tensor of numbers that are no matrix of a product."""
        if tensor.mixer is not None:
            values = self._in_gguf(tensor)
            assert isinstance(values, np.ndarray)
        else:
            each = [self._numbers_of(piece) for piece in tensor.pieces]
            values = np.concatenate(each, axis=-1)
        shaped = values.astype(np.float32).reshape(tensor.shape)
        return np.ascontiguousarray(shaped + np.float32(tensor.offset) if tensor.offset else shaped)

    def _numbers_of(self, piece: Piece) -> Floats:
        values = self._weights.array(piece.name)
        if piece.rows is not None:
            values = values[..., piece.rows]
        return values if piece.order is None else values[..., piece.order]

    def _matrices(self, tensor: GgufTensor) -> Iterator[list[Matrix]]:
        """Yield each matrix of a tensor as parts that follow each other."""
        if tensor.mixer is not None:
            made = self._in_gguf(tensor)
            yield from ([matrix] for matrix in (made if isinstance(made, tuple) else (made,)))
            return
        each = (self._matrices_of(piece, tensor) for piece in tensor.pieces)
        for parts in zip(*each, strict=True):
            yield list(parts)

    def _matrices_of(self, piece: Piece, tensor: GgufTensor) -> Iterator[Matrix]:
        """Yield the rows of a piece of each matrix."""
        stored: Iterator[Matrix]
        if "{}" in piece.name:
            numbers = range(tensor.shape[0])
            stored = (self._weights.matrix(piece.name.format(number)) for number in numbers)
        elif len(tensor.shape) == 3:
            stored = iter(self._weights.stack(piece.name))
        else:
            stored = iter((self._weights.matrix(piece.name),))
        for matrix in stored:
            part = matrix if piece.rows is None else row_range(matrix, piece.rows)
            yield part if piece.order is None else take_rows(part, piece.order)

    def _in_gguf(self, tensor: GgufTensor) -> Any:
        assert tensor.mixer is not None
        index, role = tensor.mixer
        mixer = self._spec.layers[index].mixer
        assert isinstance(mixer, WritableMixerSpec)
        return mixer.in_gguf(role, self._weights.mixer_tensors(index))

    def _info(self, tensor: GgufTensor) -> TensorInfo:
        """Return the description of a tensor as `raw` returns it. A quantized tensor of the folder
        keeps the name of its type, unless it is one that must be floats."""
        type_name = self._type_name(tensor) if tensor.is_matrix else "F32"
        if type_name not in _FLOAT_BYTES and KEPT.search(tensor.name):
            type_name = "F32"
        size = math.prod(tensor.shape) * _FLOAT_BYTES.get(type_name, 1)
        return TensorInfo(tensor.name, tensor.shape, type_name, 0, size)

    def _type_name(self, tensor: GgufTensor) -> str:
        if _FLOAT32.search(tensor.name):
            return "F32"
        kinds = {self._stored_type(name) for name in self._stored_names(tensor)}
        return kinds.pop() if len(kinds) == 1 else "F32"

    def _stored_names(self, tensor: GgufTensor) -> list[str]:
        if tensor.mixer is None:
            return [piece.name.format(0) for piece in tensor.pieces]
        index, role = tensor.mixer
        mixer, names = self._spec.layers[index].mixer, self._weights.names
        assert mixer is not None
        own = role if role in mixer.linears else mixer.linears[0]
        return [names.layer.format(index) + names.mixer[own]]

    def _stored_type(self, name: str) -> str:
        sample = self._checkpoint.layout_sample(name)
        if isinstance(sample, Dense):
            return _FLOAT_TYPES[sample.dtype]
        type_name = self._checkpoint.tensors[name].type_name
        # The bytes of a folder's MXFP4 are not those of GGUF.
        return f"{type_name} of a folder" if type_name in TYPES else type_name

    def _check(self) -> None:
        """Check that a GGUF file with these names and metadata would be read as this model. Raises
        ModelError naming the first difference."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "header.gguf"
            self._write_header(path)
            try:
                file = GgufFile(path)
                read, family = registry.spec_of_gguf(file)
                self._compare(read)
                gguf_weights(file, read, family, "auto")
            except ModelError as error:
                raise ModelError(str(error).replace(str(path), f"{self.path} as GGUF")) from None

    def _compare(self, read: DecoderSpec) -> None:
        """Compare the spec of the folder with that of the file."""
        difference = first_difference(self._spec, read)
        turned = self._spec.interleaved_rope, read.interleaved_rope
        if difference is None and not self._family.permuted_qk and turned[0] != turned[1]:
            difference = "interleaved_rope: {} and {}".format(*turned)
        if difference is not None:
            raise ModelError(
                f"{self.path}: GGUF files of the architecture {self._family.architecture} cannot"
                f" say everything about this model ({difference} in a file)"
            )

    def _write_header(self, path: Path) -> None:
        """Write the header of the file, and the tensors that its readers read with it."""
        targets = [
            NewTensor(name, info.shape, "F16" if name in self._made else "F32")
            for name, info in self.tensors.items()
        ]
        layout = GgufLayout(self.pairs(), targets)
        with path.open("wb") as file:
            file.write(layout.header)
            file.truncate(layout.size_bytes)
            for target, offset in zip(targets, layout.offsets, strict=True):
                if target.name in self._factors:
                    file.seek(offset)
                    file.write(self._factors[target.name].tobytes())


def _dense(matrix: Matrix) -> Dense:
    assert isinstance(matrix, Dense), "a quantized matrix is never copied"
    return matrix
