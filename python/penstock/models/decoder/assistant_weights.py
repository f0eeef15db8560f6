"""Reads the weights of an assistant (see `assistant_spec`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.assistant_spec import AssistantSpec
from penstock.models.decoder.centroid_head import CentroidHead
from penstock.models.decoder.layer_weights import MatrixBytes
from penstock.models.decoder.mtp_weights import column_halves
from penstock.models.decoder.pass_bytes import layer_bytes
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize


@dataclass(frozen=True, slots=True)
class AssistantNames:
    """The names of the tensors of an assistant.

    - `decoder`: those of its decoder.
    - `before`: the projection of the joined embedding and hidden state of the target.
    - `after`: the projection of the final hidden state to the target's width.
    - `centroids`, `ordering`: the centroids, and the tokens in the order of their clusters.
    """

    decoder: TensorNames
    before: str
    after: str
    centroids: str = ""
    ordering: str = ""


class AssistantWeights:
    """The weights of an assistant. `decoder`: those of its decoder."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: AssistantNames,
        spec: AssistantSpec,
        dtype: Literal["auto", "f32"],
        ordering: Callable[[], npt.NDArray[np.generic]] | None = None,
    ) -> None:
        """Check the header of the file.

        - `spec`: the spec of the assistant beside its target.
        - `ordering`: reads the tensor `AssistantNames.ordering`, [V] integers; None without
          centroids.

        Raises ModelError naming a tensor that is missing, unexpected or of the wrong shape.
        """
        self.spec = spec
        own, width = spec.decoder, spec.decoder.hidden_size
        self._ordering = ordering
        self._shapes: dict[str, Shape] = {
            names.before: (width, 2 * spec.target_width),
            names.after: (spec.target_width, width),
        }
        if spec.centroids is not None:
            self._shapes[names.centroids] = (spec.centroids.count, width)
            self._shapes[names.ordering] = (own.vocab_size,)
        parts = {"before": names.before, "after": names.after, "centroids": names.centroids}
        named = replace(names.decoder, model_parts=parts)
        self.decoder = DecoderWeights(checkpoint, named, own, dtype, also_expected=self._shapes)
        self._parts = self.decoder.parts()
        self._path = f"{checkpoint.path}: {names.ordering}"

    @property
    def shares_head(self) -> bool:
        """Whether it uses the language-model head of the target, which no assistant does."""
        return False

    def head(self) -> Linear:
        """Return the language-model head [V, W], which may be the embedding matrix."""
        return self.decoder.head() or Linear((self.decoder.embedding(),))

    def before(self) -> tuple[Linear, Linear]:
        """Return the projections of the target's embedding and of its hidden state, whose results
        are added: [W, target width] each."""
        return column_halves(self._parts.matrix("before"), self.spec.target_width)

    def after(self) -> Linear:
        """Return the projection of the final hidden state to the target's width."""
        return Linear((self._parts.matrix("after"),))

    def centroid_head(self) -> CentroidHead | None:
        """Return the head with clusters of tokens, or None without. Raises ModelError if a token is
        not in exactly one cluster."""
        centroids = self.spec.centroids
        if centroids is None or self._ordering is None:
            return None
        order = self._ordering().astype(np.int64)
        if not np.array_equal(np.sort(order), np.arange(self.spec.decoder.vocab_size)):
            raise ModelError(f"{self._path}: does not name every token once")
        (table,) = self.head().parts
        floats = table if isinstance(table, Dense) else Dense(dequantize(table), "f32")
        tokens = order.astype(np.int32).reshape(centroids.count, -1)
        return CentroidHead(self._parts.array("centroids"), tokens, floats, centroids.chosen)

    def pass_bytes(self) -> int:
        """Return the bytes of weights that a pass over one token reads, without a language-model
        head."""
        return layer_bytes(self.decoder, self._shapes)

    def packed_bytes(self, size: MatrixBytes) -> int:
        """Return the bytes of all packed weights. `size`: see `Weights.packed_bytes`."""
        return self.decoder.bytes_of(
            expected_shapes(self.decoder.names, self.spec.decoder) | self._shapes, size
        )
