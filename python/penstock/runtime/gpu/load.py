"""From a model on disk to a runtime on a GPU. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from penstock.base.errors import ModelError
from penstock.base.resources import available_bytes
from penstock.config import GPU_STEP_SIZES, EngineSettings, read_environment
from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.gpu_kv_cache import CacheExtents
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.decoder import Progress
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.gpu.cuda_graphs import sizes_up_to
from penstock.runtime.gpu.memory import DeviceMemoryPlan, cache_item_bytes, plan_device_memory
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.gpu.sampler import MakeSampler, SingleDeviceSampler
from penstock.runtime.protocol import RuntimeInfo

log = logging.getLogger(__name__)

Observe: TypeAlias = Callable[[str, DeviceMemoryPlan], None]
"""Told of each stage of a start, when it is over, with what was planned: "weights", "cache", "kept"
(by attention, for steps of decodes), "slots", "rows", and "graph", the first ones captured."""

ROUNDED = "; float weights of layers are rounded to 8-bit floats"


def unobserved(stage: str, memory: DeviceMemoryPlan) -> None:
    """Nobody wants to know."""


def torch_serves() -> bool:
    """Whether this build of torch can use the GPU that the driver shows."""
    return torch.cuda.is_available()


def start_gpu_runtime(
    model: LoadedModel,
    settings: EngineSettings,
    device: str,
    progress: Progress | None = None,
    observe: Observe = unobserved,
) -> GpuRuntime:
    """The runtime of an opened model on `device`, its largest graph captured. Raises ModelError
    where the device cannot serve or the model does not fit."""
    opened = open_device(settings, device)
    memory = plan_sizes(model, settings, opened.ops, opened.free_bytes())
    runtime = place(model, memory, settings, opened.ops, progress, observe=observe)
    runtime.warm(1)
    observe("graph", memory)
    log.info("%s", opened.report())
    return runtime


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device that can be used. `packaged`: the compiled kernels that serve it."""

    ops: TorchOps
    packaged: Any

    def free_bytes(self) -> int:
        """That nobody has taken yet."""
        free, _ = torch.cuda.mem_get_info(self.ops.device)
        return free

    def report(self) -> str:
        """Of the compiled kernels, one line."""
        from penstock.kernels.cuda.library import Unavailable

        if isinstance(self.packaged, Unavailable):
            return f"kernels are compiled on first use: {self.packaged.reason}"
        return self.packaged.report()


def open_device(settings: EngineSettings, device: str) -> OpenDevice:
    """The device, for this thread, and what computes on it. Raises ModelError where it cannot
    serve."""
    if not torch_serves():
        raise ModelError(f"device is {device}, and this build of torch sees no CUDA device")
    torch.cuda.set_device(device)
    dtype = torch.float32 if settings.dtype == "f32" else torch.bfloat16
    # only where there is a GPU, as in `serving_ops`
    from penstock.kernels.cuda.launcher import serve_installed, serve_none

    left_out = "packaged" in kernels_without(settings)
    packaged = serve_none(_LEFT_OUT) if left_out else serve_installed(device)
    return OpenDevice(serving_ops(settings, device, dtype), packaged)


_LEFT_OUT = "left out by --without-kernels"


def kernels_without(settings: EngineSettings) -> dict[str, str]:
    """Why which kernels of the CUDA library, or "packaged" ones, are not used. Raises ModelError
    for a name that there is not."""
    from penstock.kernels.cuda.self_test import KERNELS

    names = [name.strip() for name in settings.without_kernels.split(",") if name.strip()]
    known = (*KERNELS, "packaged")
    for name in names:
        if name not in known:
            raise ModelError(f"without_kernels: {name!r} is none of {', '.join(known)}")
    return dict.fromkeys(names, _LEFT_OUT)


def plan_sizes(
    model: LoadedModel, settings: EngineSettings, ops: TorchOps, free_bytes: int
) -> DeviceMemoryPlan:
    """What an engine will take of its devices, of each of which `free_bytes` are left, for a model
    or the shard of one that `ops` will pack. Raises ModelError where it does not fit, there or in
    the host's memory."""
    taken_bytes = weight_bytes(model, settings, ops)
    memory = plan_device_memory(model.spec, taken_bytes, settings, free_bytes)
    _tell_of_shrinking(memory, settings)
    of_host = available_bytes()
    if of_host is not None and memory.host_memory_bytes > of_host:
        raise ModelError(
            f"host_cache_mb is {settings.host_cache_mb}, guesses take up to "
            f"{memory.ngram_index_bytes >> 20} MiB; {of_host >> 20} MiB of the host's memory are "
            "available"
        )
    return memory


def _tell_of_shrinking(memory: DeviceMemoryPlan, settings: EngineSettings) -> None:
    """Log step sizes that are smaller than the defaults of a GPU because memory is short."""
    wanted = settings.step_sizes(GPU_STEP_SIZES[0])
    if memory.sizes != wanted:
        log.info(
            "max_num_seqs is %d and max_num_batched_tokens %d: with %d and %d the cache would be"
            " too small",
            *(*memory.sizes, *wanted),
        )


def weight_bytes(model: LoadedModel, settings: EngineSettings, ops: TorchOps) -> int:
    """What the weights of a model, or of a shard of one, will take as `ops` pack them: often more
    than in a GGUF file, whose blocks are denser than what kernels read."""
    taken_bytes = model.weights.packed_bytes(ops.packed_bytes)
    if settings.quantize != "fp8":
        return taken_bytes
    return taken_bytes - model.weights.float8_savings(ops.packed_bytes)


def serving_ops(settings: EngineSettings, device: str, dtype: torch.dtype) -> TorchOps:
    """The CUDA library where it is installed and computes rightly, and Triton; Triton alone where
    that is asked for, and for answers that do not depend on their neighbours."""
    # only where there is a GPU: Triton takes a second to import
    from penstock.kernels.cuda import CudaOps
    from penstock.kernels.triton import TritonOps

    # torch lets cuBLAS round the parts of a product to bfloat16 before it adds them up
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    dense: Literal["stored", "float8"] = "float8" if settings.quantize == "fp8" else "stored"
    if settings.deterministic:
        return TritonOps(device, dtype, products="invariant", dense=dense)
    if settings.kernels == "triton":
        return TritonOps(device, dtype, dense=dense)
    trials = read_environment().home / "trials"
    without = kernels_without(settings)
    return CudaOps(device, dtype, verdicts=trials, dense=dense, without=without)


def place(
    model: LoadedModel,
    memory: DeviceMemoryPlan,
    settings: EngineSettings,
    ops: TorchOps,
    progress: Progress | None = None,
    *,
    graphs: bool = True,
    ranks: Communicator[torch.Tensor] = SINGLE_RANK,
    sampler: MakeSampler = SingleDeviceSampler,
    observe: Observe = unobserved,
) -> GpuRuntime:
    """The runtime of a model, or of this rank's shard of one, with the sizes of `memory`, on the
    device of `ops`."""

    def reached(stage: str) -> None:
        observe(stage, memory)

    shape = memory.cache
    placed = DeviceModel(
        model,
        ops,
        CacheExtents(shape.layers, shape.blocks, shape.kv_heads, shape.block_size, shape.head_dim),
        cache_dtype(settings, ops.dtype),
        max_rows=sizes_up_to(memory.sizes.max_num_seqs)[-1],
        max_model_len=memory.max_model_len,
        progress=progress,
        ranks=ranks,
        reached=reached,
    )
    placed.make_slots(settings, memory.adapter_bytes)
    reached("slots")
    on_gpu = torch.device(ops.device).type == "cuda"
    runtime = GpuRuntime(
        ops,
        placed,
        _info(model, memory, settings, placed.weight_bytes),
        _report(model, memory, settings),
        max_num_seqs=memory.sizes.max_num_seqs,
        step_tokens=memory.step_tokens,
        stream=torch.cuda.Stream(ops.device) if on_gpu else None,
        graphs=graphs,
        sampler=sampler,
    )
    reached("rows")
    return runtime


def _info(
    model: LoadedModel, memory: DeviceMemoryPlan, settings: EngineSettings, packed_bytes: int
) -> RuntimeInfo:
    return RuntimeInfo(
        model_id=model.model_id,
        fingerprint=model.fingerprint,
        vocab_size=model.spec.vocab,
        max_model_len=memory.max_model_len,
        cache_blocks=memory.cache.blocks - 1,  # the last takes what only fills steps up
        block_size=memory.cache.block_size,
        weight_bytes=memory.weight_bytes if settings.quantize == "fp8" else packed_bytes,
        memory_bytes=memory.host_memory_bytes,
        sizes=memory.sizes,
        overlaps=True,
        cpu_blocks=memory.cpu_blocks,
        most_saves=memory.most_saves,
    )


def _report(model: LoadedModel, memory: DeviceMemoryPlan, settings: EngineSettings) -> str:
    """The line of memory that a start shows."""
    return memory.formula() + (ROUNDED if settings.quantize == "fp8" else "") + model.remark


def cache_dtype(settings: EngineSettings, activations: torch.dtype) -> torch.dtype:
    """The type of the cache's elements; bfloat16 beside bfloat16 activations."""
    item_bytes = cache_item_bytes(settings)
    if item_bytes == 1:
        return torch.float8_e4m3fn
    if item_bytes == 4:
        return torch.float32
    wanted_f16 = settings.cache_dtype == "f16" or activations != torch.bfloat16
    return torch.float16 if wanted_f16 else torch.bfloat16
