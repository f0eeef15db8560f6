"""From settings to a runtime that serves: find the model, plan the memory, pack the weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes
from penstock.config import EngineSettings, Environment, read_environment
from penstock.models.decoder.decoder import Progress
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.weights import expected_shapes
from penstock.models.embedding.rerankers import is_reranker, load_reranker
from penstock.models.families.registry import hf_names
from penstock.models.hub.folder_files import weight_names
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.model_files import ModelFiles, gguf_parts
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.model_loader import LoadedModel, load_embedder, load_model
from penstock.runtime.backend import Backend
from penstock.runtime.cpu.embedding import NativeEmbedding
from penstock.runtime.cpu.isa_selection import select_isas
from penstock.runtime.cpu.native import NativeBackend
from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.device_choice import choose_device, rank_devices
from penstock.runtime.memory import MemoryPlan, plan_memory, warn_of_short_context
from penstock.runtime.protocol import Runtime, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.runtime.weight_quantization import integer_bits, refuse_for_vectors, refuse_on_cpu


def load_runtime(
    settings: EngineSettings,
    environment: Environment | None = None,
    progress: Progress | None = None,
) -> Runtime:
    """The runtime of the model that `settings` names. `progress(layers packed, layers in all)`.

    Raises ModelError where the model is not found, cannot be read or does not fit.
    """
    environment = environment or read_environment()
    files, available = find_files(settings, environment)
    return start_runtime(files, settings, available, progress, environment.home)


def find_files(
    settings: EngineSettings,
    environment: Environment | None = None,
    limit_bytes: int | None = None,
) -> tuple[ModelFiles, int | None]:
    """The files of the model that `settings` names, and the bytes of memory that there are for it,
    at most `limit_bytes`. Raises ModelError."""
    environment = environment or read_environment()
    bounds = [size for size in (available_bytes(), limit_bytes) if size is not None]
    files = resolve_model(settings.model, environment.home, hub_access_of(environment))
    return files, min(bounds, default=None)


def start_embedding(
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None = None,
    progress: Progress | None = None,
) -> NativeEmbedding:
    """The runtime of an embedding model or a reranker on disk, within `available` bytes. Raises
    ModelError."""
    if settings.kernels == "reference":
        raise ModelError(
            f"{files.model_id}: embedding models and rerankers have native kernels only"
        )
    refuse_for_vectors(settings)
    rank_devices(settings, "cpu")
    load = load_reranker if is_reranker(files) else load_embedder
    model = load(files, settings.dtype)
    packed_bytes = _file_bytes(files) + model.extra_bytes
    return NativeEmbedding(model, packed_bytes, settings, available, progress)


def start_runtime(
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None = None,
    progress: Progress | None = None,
    home: Path | None = None,
) -> Runtime:
    """The runtime of a model on disk, on the device that `settings` ask for; on a CPU within
    `available` bytes (None: as much as it takes). `home`: where the chosen instruction-set levels
    are kept, None: PENSTOCK_HOME. Raises ModelError."""
    device = choose_device(settings)
    if device != "cpu":
        # torch takes two seconds to import: a CPU server has no need of it
        import penstock.runtime.gpu.load as gpu_load

        if settings.device != "auto" or gpu_load.torch_serves():
            devices = rank_devices(settings, device)
            if len(devices) > 1:
                import penstock.runtime.ranks.load as rank_load

                return rank_load.start_ranked_runtime(files, settings, devices, progress)
            bits = integer_bits(settings)
            model = load_model(files, settings.dtype, float8="float8", bits=bits)
            return gpu_load.start_gpu_runtime(model, settings, device, progress)
    refuse_on_cpu(settings)
    rank_devices(settings, "cpu")
    model = load_model(files, settings.dtype, bits=integer_bits(settings))
    packed_bytes = weight_bytes(files, model.spec, settings) + model.extra_bytes
    memory = plan_memory(model.spec, packed_bytes, settings, available)
    warn_of_short_context(model.spec, settings, memory)
    backend, arithmetic = _backend(model, memory, settings, progress, home)
    rows = RowTable(memory.sizes.max_num_seqs, memory.max_model_len, settings.block_size)
    taken = replace(memory, weight_bytes=backend.weight_bytes, buffer_bytes=backend.buffer_bytes)
    info = RuntimeInfo(
        model_id=model.model_id,
        fingerprint=f"{model.fingerprint}-{arithmetic}",
        vocab_size=model.spec.vocab,
        max_model_len=memory.max_model_len,
        cache_blocks=memory.cache.blocks,
        block_size=settings.block_size,
        weight_bytes=backend.weight_bytes,
        memory_bytes=taken.total_bytes,
        sizes=memory.sizes,
    )
    report = taken.formula() + model.load_note
    return CpuRuntime(rows, backend, info, report)


def _backend(
    model: LoadedModel,
    memory: MemoryPlan,
    settings: EngineSettings,
    progress: Progress | None,
    home: Path | None,
) -> tuple[Backend, str]:
    """Choose the backend, once, and name its arithmetic."""
    if settings.kernels == "reference":
        # torch takes two seconds to import: only who asks for the reference waits for it
        from penstock.runtime.cpu.reference import ReferenceBackend

        return ReferenceBackend(model, memory, settings, progress), "reference"
    levels = select_isas(model, memory.cache, settings, home or read_environment().home)
    return NativeBackend(model, memory, settings, progress, levels), levels.arithmetic


def weight_bytes(files: ModelFiles, spec: DecoderSpec, settings: EngineSettings) -> int:
    """What the packed weights will take on a CPU: as much as in their files, or 4 bytes each as
    f32."""
    if settings.dtype == "f32":
        shapes = expected_shapes(hf_names(spec), spec)
        return 4 * sum(map(math.prod, shapes.values()))
    return _file_bytes(files)


def _file_bytes(files: ModelFiles) -> int:
    """Of the files that hold the weights; a folder may have others, that nobody reads."""
    if files.kind == "gguf":
        parts = gguf_parts(files.path)
    else:
        parts = [files.path / name for name in weight_names(files.path)]
    return sum(part.stat().st_size for part in parts)
