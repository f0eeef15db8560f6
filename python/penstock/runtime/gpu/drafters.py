"""The drafters of a model on a GPU: which of them run there, their memory, and their start."""

from __future__ import annotations

from dataclasses import replace

import torch

from penstock.config import EngineSettings
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.mtp_weights import MtpWeights
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.drafts.memory import DrafterMemory
from penstock.runtime.drafts.mtp import MtpDrafter
from penstock.runtime.gpu.cuda_graphs import Capturer
from penstock.runtime.gpu.memory import DeviceMemoryPlan, SizeDrafter
from penstock.runtime.gpu.memory_terms import head_bytes
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.runtime import MakeDrafter
from penstock.runtime.gpu.sampler import CpuSampler


def size_drafter(model: LoadedModel, settings: EngineSettings, ops: TorchOps) -> SizeDrafter | None:
    """Return the function that computes the memory of the drafter of `model`; None without one."""
    if not isinstance(model.mtp, MtpWeights):
        return None
    head, spec = model.mtp, mtp_decoder(model.spec)
    weight_bytes = head.packed_bytes(ops.packed_bytes)

    def memory(plan: DeviceMemoryPlan) -> DrafterMemory:
        sizes = plan.sizes, plan.step_tokens, plan.max_model_len
        return DrafterMemory(
            weight_bytes=weight_bytes,
            cache=replace(plan.cache, layers=spec.caches),
            buffer_bytes=head_bytes(spec, settings, *sizes),
        )

    return memory


def make_drafter(
    model: LoadedModel,
    memory: DeviceMemoryPlan,
    placed: DeviceModel,
    ops: TorchOps,
    cache_dtype: torch.dtype,
    capturer: Capturer,
) -> MakeDrafter | None:
    """Pack the drafter of `model`, which is `placed` on a device. Return the function that creates
    it for the rows of the runtime; None without one. Raises ModelError if the weights cannot be
    read."""
    if model.mtp is None:
        return None
    assert memory.drafter.cache is not None, "the memory plan has no drafter"
    head = placed.make_head(
        model.mtp,
        memory.drafter.cache,
        cache_dtype,
        capturer,
        step_tokens=memory.step_tokens,
        max_rows=memory.sizes.max_num_seqs,
        max_model_len=memory.max_model_len,
    )
    return lambda rows: MtpDrafter(rows, CpuSampler(ops), head)
