"""Starts the runtime of a model that runs on the modules of transformers. Imports torch."""

from __future__ import annotations

import logging
from dataclasses import replace

import transformers

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.decoder.decoder import Progress
from penstock.models.hub.folder_files import weight_names
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.runtime.cpu.native import check_block_size, check_head_dim
from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.cpu.transformers_architecture import ForeignModel
from penstock.runtime.cpu.transformers_backend import TransformersBackend
from penstock.runtime.memory import plan_memory, warn_of_short_context
from penstock.runtime.protocol import RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.runtime.weight_bytes import file_bytes
from penstock.runtime.weight_quantization import weight_form

log = logging.getLogger(__name__)


def start_transformers_runtime(
    files: ModelFiles,
    foreign: ForeignModel,
    settings: EngineSettings,
    available: int | None,
    progress: Progress | None,
) -> CpuRuntime:
    """Return the runtime of a folder on the CPU. `available`: bytes of memory that it must fit,
    None for no check. Raises ModelError if a setting is not supported, or if the model cannot be
    read or does not fit."""
    _check_settings(files, foreign, settings)
    spec = foreign.spec
    memory = plan_memory(spec, _weight_bytes(files, foreign, settings), settings, available)
    warn_of_short_context(spec, settings, memory)
    log.warning(
        "%s has no implementation of its own; it runs on the modules of transformers %s, which is"
        " slower",
        foreign.architecture,
        transformers.__version__,
    )
    backend = TransformersBackend(files.path, foreign, memory, settings)
    if progress is not None:
        progress(len(spec.layers), len(spec.layers))
    taken = replace(memory, weight_bytes=backend.weight_bytes)
    info = RuntimeInfo(
        model_id=files.model_id,
        fingerprint=f"{fingerprint(files)}-transformers-{transformers.__version__}",
        vocab_size=spec.vocab_size,
        max_model_len=memory.max_model_len,
        cache_blocks=memory.cache.blocks,
        block_size=settings.block_size,
        weight_bytes=backend.weight_bytes,
        memory_bytes=taken.total_bytes,
        sizes=memory.sizes,
    )
    rows = RowTable(memory.sizes.max_num_seqs, memory.max_model_len, settings.block_size)
    return CpuRuntime(rows, backend, info, taken.formula())


def _check_settings(files: ModelFiles, foreign: ForeignModel, settings: EngineSettings) -> None:
    refused = {
        "LoRA adapters are": settings.lora is not None,
        "quantization is": weight_form(settings) is not None,
        "kernels reference and triton are": settings.kernel_backend in ("reference", "triton"),
        "a GPU is": settings.device not in ("auto", "cpu"),
        "tensor parallelism is": settings.tensor_parallel_size > 1,
        "a draft model is": settings.draft_model is not None,
        "speculative_algorithm mtp is": settings.speculative_algorithm == "mtp",
    }
    for subject, asked in refused.items():
        if asked:
            raise ModelError(
                f"{files.model_id}: {subject} not supported for {foreign.architecture}, which runs"
                " on the modules of transformers on the CPU"
            )
    check_block_size(settings.block_size)
    check_head_dim(files.model_id, foreign.spec.head_dim)


def _weight_bytes(files: ModelFiles, foreign: ForeignModel, settings: EngineSettings) -> int:
    """Return the bytes of the weights: the size of the files, twice that if they are widened."""
    for name in weight_names(files.path):
        part = files.path / name
        if not part.exists():
            raise ModelError(f"{part} is missing; weights are read from safetensors only")
    size = file_bytes(files)
    widened = settings.dtype == "f32" and "float32" not in str(foreign.config.dtype)
    return 2 * size if widened else size
