"""Loads a runtime from settings: finds the model, plans the memory, packs the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes, available_cores, return_freed_memory
from penstock.config import EngineSettings, Environment, read_environment
from penstock.models.decoder.decoder import Progress
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.embedding.rerankers import is_reranker, load_reranker
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.image_embedder import is_image_embedder, load_image_embedder
from penstock.models.loader.model_loader import (
    LoadedEmbedder,
    LoadedModel,
    load_embedder,
    load_model,
)
from penstock.models.loader.text_tower import has_text_tower, load_text_tower
from penstock.models.whisper.loader import load_whisper
from penstock.runtime.backend import Backend
from penstock.runtime.cpu.embedding import EmbeddingRuntime, NativeEmbedding
from penstock.runtime.cpu.image_embedding import ImageAndTextEmbedding, ImageEmbedding
from penstock.runtime.cpu.live_weights import NativeLiveWeights
from penstock.runtime.cpu.native import NativeBackend
from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.cpu.start_backend import start_backend
from penstock.runtime.cpu.transcription import start_native_transcription
from penstock.runtime.cpu.transformers_architecture import (
    foreign_model,
    unknown_architecture,
)
from penstock.runtime.device_choice import choose_device, rank_devices
from penstock.runtime.drafts.load import (
    OpenedDrafter,
    mtp_of,
    open_drafter,
    refuse_drafter_on_gpus,
)
from penstock.runtime.media_memory import media_memory
from penstock.runtime.media_rows import MediaTable
from penstock.runtime.memory import MemoryPlan, plan_memory, warn_of_short_context
from penstock.runtime.own_adapters import with_own_adapters
from penstock.runtime.prompt_rows import PromptTable
from penstock.runtime.protocol import Runtime, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.runtime.state_rows import StateTable
from penstock.runtime.transcription import TranscriptionRuntime
from penstock.runtime.weight_bytes import file_bytes, int16_bytes, packed_bytes
from penstock.runtime.weight_quantization import (
    fingerprint_of,
    importance_of,
    refuse_for_vectors,
    refuse_on_cpu,
    weight_form,
    with_known_quantization,
)


def load_runtime(
    settings: EngineSettings,
    environment: Environment | None = None,
    progress: Progress | None = None,
) -> Runtime:
    """Return the runtime of the model named in `settings`. `progress(layers packed, all layers)`:
    called while the weights are packed.

    Raises ModelError if the model is not found, cannot be read or does not fit.
    """
    environment = environment or read_environment()
    files, available = find_files(settings, environment)
    return start_runtime(files, settings, available, progress, environment.home)


def find_files(
    settings: EngineSettings,
    environment: Environment | None = None,
    limit_bytes: int | None = None,
) -> tuple[ModelFiles, int | None]:
    """Return the files of the model named in `settings`, and the bytes of memory available for it
    (`limit_bytes` at most), None if unknown. Raises ModelError if the model is not found."""
    environment = environment or read_environment()
    bounds = [size for size in (available_bytes(), limit_bytes) if size is not None]
    files = resolve_model(
        settings.model, environment.home, hub_access_of(environment), mmproj=settings.mmproj
    )
    return files, min(bounds, default=None)


def start_embedding(
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None = None,
    progress: Progress | None = None,
) -> EmbeddingRuntime:
    """Return the runtime of an embedding model or reranker whose files are on disk. `available`:
    bytes of memory that it must fit, None for no check. Raises ModelError if the model cannot be
    read or does not fit."""
    if settings.kernel_backend == "reference":
        raise ModelError(
            f"{files.model_id}: kernels is reference; embedding models and rerankers need native"
        )
    refuse_for_vectors(settings)
    rank_devices(settings, "cpu")
    if is_image_embedder(files):
        return _image_embedding(files, settings, available, progress)
    load = load_reranker if is_reranker(files) else load_embedder
    model = load(files, settings.dtype)
    return _text_embedding(model, files, settings, available, progress)


def _image_embedding(
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None,
    progress: Progress | None,
) -> EmbeddingRuntime:
    images = ImageEmbedding(load_image_embedder(files, settings.dtype), settings, available)
    if not has_text_tower(files):
        return images
    left = None if available is None else available - images.info.memory_bytes
    model = load_text_tower(files, settings.dtype)
    return ImageAndTextEmbedding(images, _text_embedding(model, files, settings, left, progress))


def _text_embedding(
    model: LoadedEmbedder,
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None,
    progress: Progress | None,
) -> NativeEmbedding:
    weight_bytes = file_bytes(files) + model.extra_bytes + int16_bytes(model.weights)
    embedding = NativeEmbedding(model, weight_bytes, settings, available, progress)
    return_freed_memory()
    return embedding


def start_transcription(
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None = None,
    progress: Progress | None = None,
) -> TranscriptionRuntime:
    """Return the runtime of a Whisper model whose files are on disk. It runs on the CPU unless the
    settings name a GPU. `available`: bytes of memory that it must fit on the CPU, None for no
    check. Raises ModelError if the model cannot be read or does not fit."""
    on_gpu = settings.device != "auto" or settings.kernel_backend == "triton"
    device = choose_device(settings) if on_gpu else "cpu"
    if device != "cpu":
        # Importing torch takes two seconds; a CPU server does not need it.
        from penstock.runtime.gpu.transcription import start_gpu_transcription

        model = load_whisper(files, settings.dtype, weight_form(settings))
        return start_gpu_transcription(model, settings, device, progress)
    refuse_on_cpu(settings)
    rank_devices(settings, "cpu")
    model = load_whisper(files, settings.dtype, weight_form(settings))
    if settings.kernel_backend != "reference":
        return start_native_transcription(model, settings, available, progress)
    from penstock.kernels.reference import ReferenceOps
    from penstock.runtime.gpu.transcription import start_torch_transcription

    return start_torch_transcription(model, settings, ReferenceOps(), available, progress)


def start_runtime(
    files: ModelFiles,
    settings: EngineSettings,
    available: int | None = None,
    progress: Progress | None = None,
    home: Path | None = None,
) -> Runtime:
    """Return the runtime of a model whose files are on disk, on the device that `settings` choose.

    `available`: bytes of memory that the model must fit on a CPU, None for no check.
    `home`: folder of the saved ISA selections, None for PENSTOCK_HOME.

    Raises ModelError if the model cannot be read or does not fit.
    """
    settings = with_known_quantization(settings)
    refusal = unknown_architecture(files.path) if files.kind == "folder" else None
    if refusal is not None:
        foreign = foreign_model(files.path, refusal)
        # transformers and torch are only imported for models that have no family.
        from penstock.runtime.cpu.transformers_load import start_transformers_runtime

        return start_transformers_runtime(files, foreign, settings, available, progress)
    device = choose_device(settings)
    if device != "cpu":
        # Importing torch takes two seconds; a CPU server does not need it.
        import penstock.runtime.gpu.load as gpu_load

        if settings.device != "auto" or gpu_load.torch_sees_gpu():
            refuse_drafter_on_gpus(settings)
            devices = rank_devices(settings, device)
            if len(devices) > 1:
                import penstock.runtime.ranks.load as rank_load

                return rank_load.start_tensor_parallel_runtime(files, settings, devices, progress)
            form = weight_form(settings)
            importance = importance_of(settings)
            model = load_model(
                files,
                settings.dtype,
                float8="float8",
                form=form,
                mtp=mtp_of(settings),
                importance=importance,
            )
            settings = with_own_adapters(settings, model.media_spec)
            # Draft heads exist only on CPUs.
            own = msgspec.structs.replace(settings, draft_vocabulary=0)
            drafts = open_drafter(files, model, own, home, "float8")
            return gpu_load.start_gpu_runtime(model, settings, device, progress, drafts=drafts)
    refuse_on_cpu(settings)
    rank_devices(settings, "cpu")
    model = load_model(
        files,
        settings.dtype,
        form=weight_form(settings),
        mtp=mtp_of(settings),
        importance=importance_of(settings),
        threads=settings.threads or available_cores(),
    )
    settings = with_own_adapters(settings, model.media_spec)
    weight_bytes = packed_bytes(files, model, settings)
    media = media_memory(model.spec.hidden_size, model.media_spec, model.media, settings)
    drafts = open_drafter(files, model, settings, home)
    if drafts is not None and drafts.head is not None:
        ids = None if drafts.vocabulary is None else drafts.vocabulary.ids
        model = replace(model, mtp=drafts.head, draft_ids=ids)
    sizes_of = None if drafts is None else drafts.memory
    memory = plan_memory(model.spec, weight_bytes, settings, available, media, sizes_of)
    warn_of_short_context(model.spec, settings, memory)
    started = start_backend(model, memory, settings, progress, home)
    return_freed_memory()
    runtime = cpu_runtime(model, memory, settings, started, drafts)
    backend, _ = started
    if isinstance(backend, NativeBackend) and isinstance(model.weights, DecoderWeights):
        spare = None if available is None else available - runtime.info.memory_bytes
        given = files, settings, memory, spare, home
        runtime.live_weights = NativeLiveWeights(backend, model.weights, *given, runtime.use)
    return runtime


def cpu_runtime(
    model: LoadedModel,
    memory: MemoryPlan,
    settings: EngineSettings,
    started: tuple[Backend, str],
    drafts: OpenedDrafter | None = None,
) -> CpuRuntime:
    """Return the runtime of a model whose backend runs. `started`: the result of `start_backend`.
    `drafts`: its drafter, None for none."""
    backend, arithmetic = started
    table = None
    if backend.media is not None:
        table = MediaTable(
            backend.media.encoded,
            memory.sizes.max_num_seqs,
            memory.step_tokens,
            model.spec.hidden_size,
            has_axes=bool(model.spec.rope.axes),
        )
    rows = RowTable(
        memory.sizes.max_num_seqs,
        memory.max_model_len,
        settings.block_size,
        table,
        StateTable(memory.sizes.max_num_seqs) if model.spec.is_recurrent else None,
        PromptTable(memory.sizes.max_num_seqs) if backend.tells_prompts_apart else None,
    )
    taken = replace(memory, weight_bytes=backend.weight_bytes, buffer_bytes=backend.buffer_bytes)
    drafter = None if drafts is None else drafts.start(memory, rows, backend)
    info = RuntimeInfo(
        model_id=model.model_id,
        fingerprint=fingerprint_of(model.fingerprint, settings, arithmetic),
        vocab_size=model.spec.vocab_size,
        max_model_len=memory.max_model_len,
        cache_blocks=memory.cache.blocks,
        block_size=settings.block_size,
        weight_bytes=backend.weight_bytes + memory.media.tower_bytes,
        memory_bytes=taken.total_bytes,
        sizes=memory.sizes,
        state_snapshots=memory.states.snapshots if model.spec.is_recurrent else None,
        drafter=None if drafter is None else drafter.source,
        max_drafts=0 if drafter is None else settings.num_draft_tokens,
        tells_prompts_apart=backend.tells_prompts_apart,
    )
    report = taken.formula() + model.load_note
    return CpuRuntime(rows, backend, info, report, drafter)
