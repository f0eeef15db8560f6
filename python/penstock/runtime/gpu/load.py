"""Loads a model on a GPU and builds its runtime. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes
from penstock.config import GPU_STEP_SIZES, EngineSettings, read_environment
from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.decoder import Progress
from penstock.models.loader.model_loader import LoadedModel
from penstock.quant.safetensors.cache_scales import read_cache_scales
from penstock.runtime.drafts.load import OpenedDrafter
from penstock.runtime.gpu.cuda_graphs import capturer_of, sizes_up_to
from penstock.runtime.gpu.drafters import place_drafter, size_drafter
from penstock.runtime.gpu.media import DeviceMedia, device_towers
from penstock.runtime.gpu.memory import DeviceMemoryPlan, cache_item_bytes, plan_device_memory
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.placed_drafter import PlacedDrafter
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import MakeSampler, SingleDeviceSampler
from penstock.runtime.gpu.tower_graphs import MAX_GRAPH_BYTES
from penstock.runtime.media_memory import media_memory
from penstock.runtime.protocol import RuntimeInfo

if TYPE_CHECKING:
    from penstock.kernels.cuda.library import Unavailable
    from penstock.kernels.triton.compile.packaged_kernels import PackagedKernels

log = logging.getLogger(__name__)

Observe: TypeAlias = Callable[[str, DeviceMemoryPlan], None]
"""A callback after each stage of a start, with the memory plan. Stages: "weights", "cache",
"states" (only of recurrent layers), "kept" (the memory of decode attention is allocated), "slots",
"drafter" (only with one), "rows", "graph" (the first graphs are captured)."""

ROUNDED = "; float weights of layers are rounded to 8-bit floats"


def ignore_stages(stage: str, memory: DeviceMemoryPlan) -> None:
    """Do nothing: the default `Observe`."""


def torch_sees_gpu() -> bool:
    """Return whether this build of torch can use the GPU that the driver reports."""
    return torch.cuda.is_available()


def start_gpu_runtime(
    model: LoadedModel,
    settings: EngineSettings,
    device: str,
    progress: Progress | None = None,
    observe: Observe = ignore_stages,
    drafts: OpenedDrafter | None = None,
) -> GpuRuntime:
    """Return the runtime of a model on `device`, with its largest graph captured. `model`: the
    model, whose weights are not packed yet. `drafts`: its drafter, None for none. Raises ModelError
    if the device cannot be used or the model does not fit."""
    opened = open_device(settings, device)
    memory = plan_sizes(model, settings, opened.ops, opened.free_bytes(), drafts)
    runtime = build_runtime(
        model, memory, settings, opened.ops, progress, observe=observe, drafts=drafts
    )
    runtime.warm(1)
    observe("graph", memory)
    log.info("%s", opened.report())
    return runtime


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device that can be used. `packaged`: the compiled kernels of the installed package, or why
    they are not used."""

    ops: TorchOps
    packaged: PackagedKernels | Unavailable

    def free_bytes(self) -> int:
        """Return the free memory of the device in bytes."""
        free, _ = torch.cuda.mem_get_info(self.ops.device)
        return free

    def report(self) -> str:
        """Return a line for the log that says whether packaged kernels are used."""
        from penstock.kernels.cuda.library import Unavailable

        if isinstance(self.packaged, Unavailable):
            return f"kernels are compiled when first used: {self.packaged.reason}"
        return self.packaged.report()


def device_memory(device: str) -> tuple[int, int]:
    """Return the free and the total memory of a device in bytes. Raises ModelError if torch does
    not see a GPU."""
    if not torch_sees_gpu():
        raise ModelError(f"device is {device}, but this build of torch finds no CUDA device")
    free, total = torch.cuda.mem_get_info(device)
    return free, total


def open_device(settings: EngineSettings, device: str) -> OpenDevice:
    """Make `device` the current device of this thread, and return it with the ops that serve on it.
    Raises ModelError if the device cannot be used."""
    if not torch_sees_gpu():
        raise ModelError(f"device is {device}, but this build of torch finds no CUDA device")
    torch.cuda.set_device(device)
    dtype = torch.float32 if settings.dtype == "f32" else torch.bfloat16
    # Imported here because it needs a GPU, as in `serving_ops`.
    from penstock.kernels.cuda.launcher import serve_installed, serve_none

    left_out = "packaged" in excluded_kernels(settings)
    packaged = serve_none(_LEFT_OUT) if left_out else serve_installed(device)
    return OpenDevice(serving_ops(settings, device, dtype), packaged)


_LEFT_OUT = "excluded by disabled_kernels"


def excluded_kernels(settings: EngineSettings) -> dict[str, str]:
    """Return the kernels of the CUDA library (or "packaged") that `disabled_kernels` names, each
    with the reason for the log. Raises ModelError for an unknown name."""
    from penstock.kernels.cuda.self_test import KERNELS

    names = [name.strip() for name in settings.disabled_kernels.split(",") if name.strip()]
    known = (*KERNELS, "packaged")
    for name in names:
        if name not in known:
            raise ModelError(
                f"disabled_kernels: {name!r} is not a kernel; it must be one of {', '.join(known)}"
            )
    return dict.fromkeys(names, _LEFT_OUT)


def plan_sizes(
    model: LoadedModel,
    settings: EngineSettings,
    ops: TorchOps,
    free_bytes: int,
    drafts: OpenedDrafter | None = None,
) -> DeviceMemoryPlan:
    """Plan the memory of an engine with `free_bytes` of free memory on each of its devices.

    `model`: the model, or one shard of it. `ops`: packs the weights. `drafts`: the drafter. Raises
    ModelError if the model does not fit the devices or the host memory, or if the drafter does not
    run on GPUs.
    """
    media = media_memory(model.spec.hidden_size, model.media_spec, model.media, settings)
    packed_bytes = weight_bytes(model, settings, ops) + media.total_bytes
    packed_bytes += MAX_GRAPH_BYTES if model.media else 0
    drafter = size_drafter(drafts, settings, ops)
    memory = plan_device_memory(model.spec, packed_bytes, settings, free_bytes, drafter)
    _log_reduced_sizes(memory, settings)
    available = available_bytes()
    if available is not None and memory.host_memory_bytes > available:
        raise ModelError(
            f"cpu_kv_cache_memory_mb is {settings.cpu_kv_cache_memory_mb} and the n-gram"
            " index needs up to "
            f"{memory.ngram_index_bytes >> 20} MiB, but {available >> 20} MiB of host memory are "
            "available"
        )
    return memory


def _log_reduced_sizes(memory: DeviceMemoryPlan, settings: EngineSettings) -> None:
    """Log the step sizes if they are smaller than the defaults of a GPU because memory is short."""
    wanted = settings.step_sizes(GPU_STEP_SIZES[0])
    if memory.sizes != wanted:
        log.info(
            "max_num_seqs is %d and max_num_batched_tokens %d: with %d and %d the KV cache would be"
            " too small",
            *(*memory.sizes, *wanted),
        )


def weight_bytes(model: LoadedModel, settings: EngineSettings, ops: TorchOps) -> int:
    """Return the size of a model's (or a shard's) weights as packed by `ops`. The packed weights
    are often larger than a GGUF file, whose blocks are denser than the kernels' layout."""
    packed_bytes = model.weights.packed_bytes(ops.packed_bytes)
    if settings.quantization != "fp8":
        return packed_bytes
    return packed_bytes - model.weights.float8_savings(ops.packed_bytes)


def serving_ops(settings: EngineSettings, device: str, dtype: torch.dtype) -> TorchOps:
    """Return the ops to serve with: Triton, together with the kernels of the CUDA library if it is
    installed and passes its self-test. Triton alone if `kernels` is triton, and in deterministic
    mode."""
    # Imported here because importing Triton takes a second.
    from penstock.kernels.cuda import CudaOps
    from penstock.kernels.triton import TritonOps

    # By default torch lets cuBLAS round partial sums to bfloat16 before it adds them.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    dense: Literal["stored", "float8"] = "float8" if settings.quantization == "fp8" else "stored"
    if settings.deterministic:
        return TritonOps(device, dtype, products="invariant", dense=dense)
    if settings.kernel_backend == "triton":
        return TritonOps(device, dtype, dense=dense)
    trials = read_environment().home / "trials"
    without = excluded_kernels(settings)
    return CudaOps(device, dtype, verdicts=trials, dense=dense, without=without)


def build_runtime(
    model: LoadedModel,
    memory: DeviceMemoryPlan,
    settings: EngineSettings,
    ops: TorchOps,
    progress: Progress | None = None,
    *,
    graphs: bool = True,
    communicator: Communicator[torch.Tensor] = SINGLE_RANK,
    sampler: MakeSampler = SingleDeviceSampler,
    observe: Observe = ignore_stages,
    drafts: OpenedDrafter | None = None,
) -> GpuRuntime:
    """Build the runtime of a model (or of this rank's shard) with the sizes of `memory`, on the
    device of `ops`. `graphs`: False launches steps kernel by kernel. `drafts`: the drafter."""

    def on_stage(stage: str) -> None:
        observe(stage, memory)

    stored = cache_dtype(settings, ops.dtype)
    device_model = DeviceModel(
        model,
        ops,
        memory.cache,
        stored,
        max_rows=sizes_up_to(memory.sizes.max_num_seqs)[-1],
        max_model_len=memory.max_model_len,
        states=memory.states,
        reads_hidden=drafts is not None and drafts.head is not None,
        progress=progress,
        communicator=communicator,
        on_stage=on_stage,
    )
    if settings.kv_cache_dtype == "f8e4m3" and model.folder is not None:
        scales = read_cache_scales(model.folder)
        layers = device_model.pools.set_scales(scales, communicator.rank, communicator.count)
        log.info("%d layers have calibrated scales of the KV cache", layers)
    device_model.make_slots(settings, memory.adapter_bytes)
    on_stage("slots")
    on_gpu = torch.device(ops.device).type == "cuda"
    stream = torch.cuda.Stream(ops.device) if on_gpu else None
    capturer = capturer_of(stream, graphs=graphs)
    drafter = place_drafter(drafts, memory, device_model, ops, stored, capturer)
    if drafter is not None:
        on_stage("drafter")
    media = None
    if model.media:
        towers = None
        if communicator.rank == 0:
            towers = device_towers(model, ops, stream, graphs=graphs)
        media = DeviceMedia(model, towers, ops, memory.sizes.max_num_seqs, memory.step_tokens)
    runtime = GpuRuntime(
        ops,
        device_model,
        _info(model, memory, settings, device_model.weight_bytes, drafter),
        _report(model, memory, settings),
        max_num_seqs=memory.sizes.max_num_seqs,
        step_tokens=memory.step_tokens,
        stream=stream,
        graphs=graphs,
        sampler=sampler,
        media=media,
        drafter=drafter,
    )
    on_stage("rows")
    return runtime


def _info(
    model: LoadedModel,
    memory: DeviceMemoryPlan,
    settings: EngineSettings,
    packed_bytes: int,
    drafter: PlacedDrafter | None,
) -> RuntimeInfo:
    return RuntimeInfo(
        model_id=model.model_id,
        fingerprint=model.fingerprint,
        vocab_size=model.spec.vocab_size,
        max_model_len=memory.max_model_len,
        cache_blocks=memory.cache.blocks - 1,  # the last block is for padding chunks
        block_size=memory.cache.block_size,
        weight_bytes=memory.weight_bytes if settings.quantization == "fp8" else packed_bytes,
        memory_bytes=memory.host_memory_bytes,
        sizes=memory.sizes,
        overlaps=drafter is None,
        cpu_blocks=memory.cpu_blocks,
        max_saves_per_step=memory.max_saves_per_step,
        state_snapshots=memory.states.snapshots if model.spec.is_recurrent else None,
        drafter=None if drafter is None else drafter.source,
        max_drafts=0 if drafter is None else settings.num_draft_tokens,
    )


def _report(model: LoadedModel, memory: DeviceMemoryPlan, settings: EngineSettings) -> str:
    """Return the memory formula and notes about the weights, for the start-up log."""
    return memory.formula() + (ROUNDED if settings.quantization == "fp8" else "") + model.load_note


def cache_dtype(settings: EngineSettings, activations: torch.dtype) -> torch.dtype:
    """Return the dtype of the KV cache. The setting `auto` gives bfloat16 for bfloat16
    `activations`."""
    item_bytes = cache_item_bytes(settings)
    if item_bytes == 1:
        return torch.float8_e4m3fn
    if item_bytes == 4:
        return torch.float32
    wanted_f16 = settings.kv_cache_dtype == "f16" or activations != torch.bfloat16
    return torch.float16 if wanted_f16 else torch.bfloat16
