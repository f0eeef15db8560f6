"""Reads the weights of an MTP head (see `mtp_spec`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.checkpoint.equal_matrices import equal_matrices
from penstock.models.checkpoint.renamed_checkpoint import RenamedCheckpoint
from penstock.models.decoder.layer_weights import MatrixBytes
from penstock.models.decoder.mixer import Vector
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.pass_bytes import layer_bytes
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import MtpNames, TensorNames
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import column_step, take_columns

_IGNORED: Final = re.compile(r".*\.rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class MtpTensors:
    """The tensors of an MTP head, and those of the model that stand in for an embedding, a
    language-model head and a norm that the head lacks.

    - `checkpoint`: has no other tensors than these.
    - `names`: all but those of the layer.
    - `layer`: the prefix of the names of the layer.
    - `has_embedding`, `has_head`: whether the head has its own.
    """

    checkpoint: Checkpoint
    names: MtpNames
    layer: str
    has_embedding: bool
    has_head: bool


def mtp_tensors(checkpoint: Checkpoint, names: TensorNames, spec: DecoderSpec) -> MtpTensors:
    """Return the tensors of the MTP head in `checkpoint`, whose model has the tensors `names`.

    Raises ModelError if the model has no MTP head, or if the file was written without it.
    """
    mtp, tensors = names.mtp, checkpoint.tensors
    if spec.mtp is None or mtp is None:
        raise ModelError(f"{checkpoint.path}: models of this kind have no MTP head")
    root = mtp.root or names.layer.format(len(spec.layers))
    if f"{root}{mtp.fc}" not in tensors:
        raise ModelError(
            f"{checkpoint.path}: tensor {root}{mtp.fc} is missing: the file has been written"
            " without the model's MTP head"
        )

    def own_or(name: str, of_model: str) -> str:
        stored = f"{root}{name}"
        has_own = name and stored in tensors and not _equal(checkpoint, stored, of_model)
        return stored if has_own else of_model

    norm = f"{root}{mtp.norm}"
    if mtp.may_lack_norm and norm not in tensors:
        norm = names.norm_weight(names.final_norm)
    embedding, head = f"{names.embedding}.weight", f"{names.head}.weight"
    own = MtpNames(
        root=root,
        fc=f"{root}{mtp.fc}",
        embedding_norm=f"{root}{mtp.embedding_norm}",
        hidden_norm=f"{root}{mtp.hidden_norm}",
        norm=norm,
        embedding=own_or(mtp.embedding, embedding),
        head=own_or(mtp.head, head),
    )
    layer = f"{root}{mtp.layer}"
    kept = {own.fc, own.embedding_norm, own.hidden_norm, own.norm, own.embedding, own.head}
    copies = {f"{root}{mtp.embedding}", f"{root}{mtp.head}"}

    def name_of(name: str) -> str | None:
        of_layer = name.startswith(layer) and name not in copies
        return name if name in kept or of_layer else None

    return MtpTensors(
        RenamedCheckpoint(checkpoint, name_of),
        own,
        layer,
        own.embedding != embedding,
        own.head != head,
    )


def _equal(checkpoint: Checkpoint, own: str, of_model: str) -> bool:
    """Return whether a matrix of the head is a copy of the model's."""
    if of_model not in checkpoint.tensors:
        return False
    return equal_matrices(checkpoint.matrix(own), checkpoint.matrix(of_model))


def column_halves(whole: Matrix, width: int) -> tuple[Linear, Linear]:
    """Return the first and the last `width` columns of a matrix of twice as many."""
    if width % column_step(whole):
        whole = Dense(dequantize(whole), "f32")
    first, last = slice(0, width), slice(width, 2 * width)
    return Linear((take_columns(whole, first),)), Linear((take_columns(whole, last),))


class MtpWeights:
    """The weights of an MTP head. `layer`: those of its layer and its norm, as a decoder."""

    def __init__(
        self,
        tensors: MtpTensors,
        names: TensorNames,
        spec: DecoderSpec,
        dtype: Literal["auto", "f32"],
        permuted_qk: bool = False,
    ) -> None:
        """Check the header of the file.

        - `names`: the names of the tensors of a layer after its prefix.
        - `spec`: the spec of the whole model.
        - `dtype`, `permuted_qk`: see `DecoderWeights`.

        Raises ModelError naming a tensor that is missing, unexpected or of the wrong shape.
        """
        own, width = tensors.names, spec.hidden_size
        self._shapes: dict[str, Shape] = {
            own.fc: (width, 2 * width),
            own.embedding_norm: (width,),
            own.hidden_norm: (width,),
        }
        named = replace(
            names,
            layer=tensors.layer,
            embedding=own.embedding.removesuffix(".weight"),
            final_norm=own.norm.removesuffix(".weight"),
            head=own.head.removesuffix(".weight"),
            model_parts={"fc": own.fc, "embedding_norm": own.embedding_norm}
            | {"hidden_norm": own.hidden_norm},
            rope_factors=None,
            ignored=_IGNORED,
        )
        layer = replace(mtp_decoder(spec), tied_head=not tensors.has_head, head_bias=False)
        self.layer = DecoderWeights(
            tensors.checkpoint, named, layer, dtype, permuted_qk, self._shapes
        )
        self._has_embedding = tensors.has_embedding
        self._parts = self.layer.parts()

    def embedding(self) -> Matrix | None:
        """Return the head's own embedding [V, W], or None if it uses the model's."""
        return self.layer.embedding() if self._has_embedding else None

    def head(self) -> Linear | None:
        """Return its own language-model head [V, W], or None if it uses the model's."""
        return self.layer.head()

    @property
    def shares_head(self) -> bool:
        """Whether it uses the model's language-model head."""
        return self.layer.spec.tied_head

    def projections(self) -> tuple[Linear, Linear]:
        """Return the projections [W, W] of the normalized embedding and of the normalized hidden
        state, whose results are added."""
        return column_halves(self._parts.matrix("fc"), self.layer.spec.hidden_size)

    def norms(self) -> tuple[Vector, Vector]:
        """Return the weights [W] of the norms of the embedding and of the hidden state."""
        return self._parts.norm("embedding_norm"), self._parts.norm("hidden_norm")

    def pass_bytes(self) -> int:
        """Return the bytes of weights that a pass over one token reads, without a language-model
        head."""
        return layer_bytes(self.layer, self._shapes)

    def packed_bytes(self, size: MatrixBytes) -> int:
        """Return the bytes of all packed weights. `size`: see `Weights.packed_bytes`."""
        names = self.layer.names
        shapes = expected_shapes(names, self.layer.spec) | self._shapes
        if not self._has_embedding:
            del shapes[f"{names.embedding}.weight"]
        return self.layer.bytes_of(shapes, size)
