"""The interface of a runtime whose weights can be studied and changed while it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.kernels.column_squares import Squares
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix
from penstock.quant.rest import Rest
from penstock.runtime.adapters import RuntimeAdapters

Progress = Callable[[int, int], None]
"""Called with the number of packed layers and the number of all layers."""


class NewWeights(Protocol):
    """Weights of the loaded model in another quantization, whose headers have been checked.

    `quantization`: a type's name, or None for the weights as they are in the file.
    `needed_bytes`: the memory that they take beside the old ones.
    `free_bytes`: the memory that is free for them; None if it is not known.
    `num_layers`: the number of layers to pack.
    """

    @property
    def quantization(self) -> str | None: ...
    @property
    def needed_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int | None: ...
    @property
    def num_layers(self) -> int: ...

    def pack(self, progress: Progress) -> None:
        """Read and pack the weights on the calling thread, while the model goes on to serve. An
        exception of `progress`, or of the `rest` that `LiveWeights.open` got, ends it. Raises
        ModelError."""
        ...

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """The adapter slots of the packed weights, or None without LoRA settings."""
        ...


class LiveWeights(Protocol):
    """The weights of a loaded decoder."""

    @property
    def quantization(self) -> str | None:
        """The quantization of the weights in use, None if they are as in the file."""
        ...

    @property
    def num_linears(self) -> int:
        """The number of matrices whose inputs `collect` sums, each stack of experts counted
        once."""
        ...

    def collect(self, squares: Squares | None) -> None:
        """Add the inputs of all linear layers of later steps to `squares`; None: stop. Call this
        between steps. Steps have the same results meanwhile, but take longer."""
        ...

    def importance(
        self,
        squares: Squares,
        datasets: tuple[str, ...] = (),
        chunk_count: int = 0,
        chunk_size: int = CHUNK_SIZE,
    ) -> ImportanceMatrix:
        """Return collected sums as an importance matrix; see its fields."""
        ...

    def open(
        self, quantization: str | None, importance: ImportanceMatrix | None, rest: Rest
    ) -> NewWeights:
        """Open the model's files again, to quantize them otherwise. `rest`: called while they are
        packed. May run in any thread. Raises Conflict if the model cannot have such weights, and
        ModelError if its files have changed."""
        ...

    def install(self, new: NewWeights) -> object:
        """Use packed weights from the next step on. Call this between steps. Return the old ones,
        whose memory is free when the caller drops them."""
        ...
