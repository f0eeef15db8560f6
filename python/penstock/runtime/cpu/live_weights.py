"""The weights of a native CPU backend, studied and changed while it serves."""

from __future__ import annotations

from penstock.kernels.column_squares import Squares
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.loader.importance_names import matrix_pairs, with_gguf_names
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix
from penstock.runtime.cpu.native import NativeBackend


class NativeLiveWeights:
    """`LiveWeights` of `backend`. `names`, `spec`: those of the checkpoint."""

    def __init__(self, backend: NativeBackend, names: TensorNames, spec: DecoderSpec) -> None:
        self._backend = backend
        self._names = names
        self._spec = spec

    @property
    def num_linears(self) -> int:
        return len({own for own, _ in matrix_pairs(self._names, self._spec)})

    def collect(self, squares: Squares | None) -> None:
        self._backend.collect(squares)

    def importance(
        self,
        squares: Squares,
        datasets: tuple[str, ...] = (),
        chunk_count: int = 0,
        chunk_size: int = CHUNK_SIZE,
    ) -> ImportanceMatrix:
        named = with_gguf_names(squares, self._names, self._spec)
        return ImportanceMatrix(named, datasets, chunk_count, chunk_size)
