"""The weights of a native CPU backend, studied and changed while it serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.base.errors import Conflict, ModelError
from penstock.base.resources import available_bytes
from penstock.config import EngineSettings
from penstock.kernels.column_squares import Squares
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.importance_names import matrix_pairs, with_gguf_names
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix
from penstock.quant.rest import Rest
from penstock.runtime.adapters import RuntimeAdapters
from penstock.runtime.cpu.native import NativeBackend
from penstock.runtime.cpu.start_backend import start_backend
from penstock.runtime.live_weights import NewWeights, Progress
from penstock.runtime.memory import MemoryPlan
from penstock.runtime.weight_bytes import packed_bytes
from penstock.runtime.weight_quantization import fingerprint_of, refuse_on_cpu, weight_form

Use = Callable[[NativeBackend, str], None]
"""Makes a runtime compute with another backend, whose fingerprint is given."""


class NativeNewWeights:
    """`NewWeights` of a native backend.

    `model`, `settings`: with the new quantization.
    `memory`, `home`: as the backend was started with.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: EngineSettings,
        memory: MemoryPlan,
        home: Path | None,
        predecessor: NativeBackend,
        sizes: tuple[int, int | None],
    ) -> None:
        self._model = model
        self._settings = settings
        self._memory = memory
        self._home = home
        self._predecessor: NativeBackend | None = predecessor
        self.quantization = settings.quantization
        self.needed_bytes, self.free_bytes = sizes
        self.num_layers = len(model.spec.layers)
        self.backend: NativeBackend | None = None
        self.fingerprint = ""

    def pack(self, progress: Progress) -> None:
        predecessor, self._predecessor = self._predecessor, None
        backend, arithmetic = start_backend(
            self._model,
            self._memory,
            self._settings,
            progress,
            self._home,
            predecessor=predecessor,
        )
        assert isinstance(backend, NativeBackend), "as the predecessor is"
        self.backend = backend
        self.fingerprint = fingerprint_of(self._model.fingerprint, self._settings, arithmetic)

    @property
    def adapters(self) -> RuntimeAdapters | None:
        assert self.backend is not None, "the weights are not packed"
        return self.backend.adapters


class NativeLiveWeights:
    """`LiveWeights` of `backend`.

    - `files`, `settings`, `memory`, `home`: as the backend was started with.
    - `spare_bytes`: the memory that the plan left free; None if it was not known.
    - `use`: makes the runtime compute with another backend.
    """

    def __init__(
        self,
        backend: NativeBackend,
        weights: DecoderWeights,
        files: ModelFiles,
        settings: EngineSettings,
        memory: MemoryPlan,
        spare_bytes: int | None,
        home: Path | None,
        use: Use,
    ) -> None:
        self._backend = backend
        self._names = weights.names
        self._spec: DecoderSpec = weights.spec
        self._files = files
        self._settings = settings
        self._memory = memory
        self._spare_bytes = spare_bytes
        self._home = home
        self._use = use
        self._squares: Squares | None = None

    @property
    def quantization(self) -> str | None:
        return self._settings.quantization

    @property
    def num_linears(self) -> int:
        return len({own for own, _ in matrix_pairs(self._names, self._spec)})

    def collect(self, squares: Squares | None) -> None:
        self._squares = squares
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

    def open(
        self, quantization: str | None, importance: ImportanceMatrix | None, rest: Rest
    ) -> NewWeights:
        if self._backend.mtp is not None:
            raise Conflict(
                "the weights of a model that drafts with an MTP head or an assistant stay as they"
                " were loaded",
                code="weights_unchangeable",
            )
        settings = msgspec.structs.replace(self._settings, quantization=quantization)
        try:
            refuse_on_cpu(settings)
            form = weight_form(settings)
        except ModelError as error:
            raise Conflict(str(error), field="ggml_type", code="type_unsupported") from None
        model = load_model(self._files, settings.dtype, form=form, importance=importance, rest=rest)
        if form is not None and not model.num_quantized:
            raise Conflict(
                "the model's file has no float weights to quantize: they are integers already",
                code="weights_not_floats",
            )
        assert isinstance(model.weights, DecoderWeights), "as the loaded weights are"
        model.weights.read_ahead = False  # steps must not wait for more than one other thread
        needed = packed_bytes(self._files, model, settings)
        bounds = [size for size in (available_bytes(), self._spare_bytes) if size is not None]
        sizes = needed, min(bounds, default=None)
        return NativeNewWeights(model, settings, self._memory, self._home, self._backend, sizes)

    def install(self, new: NewWeights) -> object:
        assert isinstance(new, NativeNewWeights) and new.backend is not None
        old, self._backend = self._backend, new.backend
        self._settings = msgspec.structs.replace(self._settings, quantization=new.quantization)
        self._use(self._backend, new.fingerprint)
        self.collect(self._squares)
        return old
