"""The forward pass of an embedding model: encoder or decoder, pooling, linear layers,
normalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.kernels.lora_slots import AdapterSlots
from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.encoder.dense import Activation, DenseLayer
from penstock.models.encoder.encoder import Encoder, PackedNorm, pack_norm
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.weights import EncoderWeights
from penstock.models.loader.model_loader import LoadedEmbedder

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class _Dense(Generic[Tensor]):
    """A linear layer after pooling, packed, with an optional activation and LayerNorm."""

    linear: Any
    activation: Activation | None
    norm: PackedNorm[Tensor] | None
    norm_eps: float


class Embedder(Generic[Tensor]):
    """An embedding model or reranker packed for one kernel backend.

    - `max_model_len`: the maximum sequence length in tokens.
    - `width`: the number of elements of an embedding.
    - `body`: an encoder, or a decoder without its language-model head.
    """

    def __init__(
        self,
        model: LoadedEmbedder,
        ops: Ops[Tensor],
        max_model_len: int,
        progress: Progress | None = None,
    ) -> None:
        spec = model.spec
        self._pooler = model.pooler
        self.body: Encoder[Tensor] | Decoder[Tensor]
        if isinstance(spec, EncoderSpec):
            assert isinstance(model.weights, EncoderWeights)
            self.body = Encoder(spec, model.weights, ops, max_model_len)
            self._layers = spec.layers
        else:
            assert isinstance(model.weights, DecoderWeights)
            self.body = Decoder(spec, model.weights, ops, max_model_len, progress)
            self._layers = len(spec.layers)
        self._dense: list[_Dense[Tensor]] = [_pack_dense(ops, layer) for layer in model.dense]
        self.width = embedding_width(model)

    def forward(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        slots: AdapterSlots | None = None,
    ) -> Tensor:
        """Return the embeddings [R, width] of the R sequences in a step; each sequence must be
        complete.

        `inputs.sample_rows`: the index of the token whose state is used, for each sequence; not
        read if the pooling is a mean. `slots`: the LoRA factors of all adapters, needed if a
        sequence uses an adapter; only for a decoder.
        """
        if self._pooler.pooling == "mean":
            states = self._states(ops, inputs, cache, None, slots)
            x = ops.mean_rows(states, inputs.query_starts)
        else:
            x = self._states(ops, inputs, cache, inputs.sample_rows, slots)
        for layer in self._dense:
            x = _apply_dense(ops, x, layer)
        return ops.l2_normalize(x) if self._pooler.normalize else x

    def _states(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        rows: Tensor | None,
        slots: AdapterSlots | None,
    ) -> Tensor:
        """Return the last layer's states: [S, W] of the tokens with the indices `rows`, or [T, W]
        of all tokens if `rows` is None."""
        caches = [cache] * self._layers  # each layer reads only its own entries
        if isinstance(self.body, Decoder):
            return self.body.hidden(ops, inputs, caches, rows, slots)
        assert slots is None, "only decoders have adapters"
        return self.body.hidden(ops, inputs, caches, rows)


def embedding_width(model: LoadedEmbedder) -> int:
    """Return the number of elements of an embedding."""
    return model.dense[-1].linear.shape[0] if model.dense else model.spec.hidden_size


def _pack_dense(ops: Ops[Tensor], layer: DenseLayer) -> _Dense[Tensor]:
    norm: PackedNorm[Tensor] | None = None if layer.norm is None else pack_norm(ops, layer.norm)
    return _Dense(ops.pack_linear(layer.linear), layer.activation, norm, layer.norm_eps)


def _apply_dense(ops: Ops[Tensor], x: Tensor, layer: _Dense[Tensor]) -> Tensor:
    x = ops.linear(x, layer.linear)
    match layer.activation:
        case "tanh":
            x = ops.tanh(x)
        case "gelu":
            x = ops.gelu(x)
    if layer.norm is not None:
        x = ops.layer_norm(x, layer.norm.weight, layer.norm.bias, layer.norm_eps)
    return x
