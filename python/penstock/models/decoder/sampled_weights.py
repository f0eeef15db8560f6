"""Some layers of a decoder as a smaller decoder, to measure the time of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.kernels.isa.instruction_sets import MatrixForm
from penstock.kernels.weights import Linear, Matrix
from penstock.models.decoder.layer_weights import LayerWeights, MatrixBytes
from penstock.models.decoder.mixer import LayerTensors, Vector
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights, prefetch_layers


class SampledWeights:
    """`Weights` of the layers `indices` of a decoder, in this order. No layer may read the KV cache
    of another one. The language-model head is also the embedding, whose own takes no time worth
    mentioning. `spec`: that of the smaller decoder."""

    def __init__(self, weights: DecoderWeights, indices: Sequence[int]) -> None:
        self._weights = weights
        self._indices = tuple(indices)
        layers = tuple(weights.spec.layers[index] for index in indices)
        self.spec: DecoderSpec = replace(weights.spec, layers=layers, tied_head=True)

    def embedding(self) -> Matrix:
        """See `Weights`."""
        head = self._weights.head()
        return self._weights.embedding() if head is None else head.parts[0]

    def head(self) -> Linear | None:
        """See `Weights`."""
        return None

    def final_norm(self) -> Vector:
        """See `Weights`."""
        return self._weights.final_norm()

    def rope_factors(self) -> Vector | None:
        """See `Weights`."""
        return self._weights.rope_factors()

    def layers(self) -> Iterator[LayerWeights]:
        """See `Weights`."""
        indices = self._indices
        return prefetch_layers(lambda place: self._weights.layer(indices[place]), len(indices))

    def parts(self) -> LayerTensors:
        """See `Weights`."""
        return self._weights.parts()

    def forms(self) -> tuple[MatrixForm, ...]:
        """Return the forms of the whole decoder, so that both use the same kernels."""
        return self._weights.forms()

    def packed_bytes(self, size: MatrixBytes) -> int:
        """See `Weights`."""
        outside, layers = weight_sizes(self._weights, size)  # of both ends, an upper bound
        return outside + sum(layers[index] for index in self._indices)

    def float8_savings(self, size: MatrixBytes) -> int:
        """See `Weights`. Returns a share of those of the whole decoder."""
        _, layers = weight_sizes(self._weights, size)
        kept = sum(layers[index] for index in self._indices)
        return self._weights.float8_savings(size) * kept // max(sum(layers), 1)


def weight_sizes(weights: DecoderWeights, size: MatrixBytes) -> tuple[int, list[int]]:
    """Return the packed bytes outside of layers, and those of each layer. `size`: see
    `Weights.packed_bytes`."""
    shapes = expected_shapes(weights.names, weights.spec)
    layers = []
    for index in range(len(weights.spec.layers)):
        prefix = weights.names.layer.format(index)
        own = {name: shapes.pop(name) for name in list(shapes) if name.startswith(prefix)}
        layers.append(weights.bytes_of(own, size))
    return weights.bytes_of(shapes, size), layers
