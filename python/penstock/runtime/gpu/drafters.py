"""The drafters of a model on a GPU: which of them run there, their memory, and their start."""

from __future__ import annotations

from dataclasses import replace

import torch

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.runtime.drafts.draft_model import DraftModel
from penstock.runtime.drafts.draft_sampler import DraftSampler
from penstock.runtime.drafts.load import OpenedDrafter
from penstock.runtime.drafts.memory import DrafterMemory
from penstock.runtime.drafts.mtp import MtpDrafter, OpenedMtp
from penstock.runtime.drafts.open_draft_model import OpenedDraftModel
from penstock.runtime.gpu.cuda_graphs import Capturer
from penstock.runtime.gpu.draft_model import DeviceDraftModel
from penstock.runtime.gpu.draft_steps import StepLimits
from penstock.runtime.gpu.memory import DeviceMemoryPlan, SizeDrafter
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS, draft_model_bytes, head_bytes
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.placed_drafter import PlacedDrafter
from penstock.runtime.gpu.sampler import CpuSampler


def size_drafter(
    drafts: OpenedDrafter | None, settings: EngineSettings, ops: TorchOps
) -> SizeDrafter | None:
    """Return the function that computes the memory of the drafter `drafts`; None without one.
    Raises ModelError if it does not run on GPUs."""
    if drafts is None:
        return None
    if isinstance(drafts, OpenedMtp):
        spec, weights = mtp_decoder(drafts.spec), drafts.head.packed_bytes(ops.packed_bytes)
        buffer_bytes = head_bytes
    elif isinstance(drafts, OpenedDraftModel):
        spec, weights = drafts.model.spec, drafts.model.weights.packed_bytes(ops.packed_bytes)
        buffer_bytes, settings = draft_model_bytes, drafts.settings
    else:
        raise ModelError(
            "draft_model is an assistant; an assistant runs only with device cpu, not on a GPU"
        )

    def memory(plan: DeviceMemoryPlan) -> DrafterMemory:
        context = min(plan.max_model_len, spec.max_model_len)
        return DrafterMemory(
            weight_bytes=weights,
            cache=replace(plan.cache, layers=spec.caches),
            buffer_bytes=buffer_bytes(spec, settings, plan.sizes, plan.step_tokens, context),
        )

    return memory


def place_drafter(
    drafts: OpenedDrafter | None,
    memory: DeviceMemoryPlan,
    target: DeviceModel,
    ops: TorchOps,
    cache_dtype: torch.dtype,
    capturer: Capturer,
) -> PlacedDrafter | None:
    """Pack the drafter `drafts` for `target`, and allocate its KV cache; return None without one.
    Raises ModelError if the weights cannot be read."""
    if drafts is None:
        return None
    cache = memory.drafter.cache
    assert cache is not None, "the memory plan has no drafter"
    context = memory.max_model_len
    if isinstance(drafts, OpenedDraftModel):
        context = min(context, drafts.model.spec.max_model_len)
    limits = StepLimits(
        tokens=memory.step_tokens,
        rows=memory.sizes.max_num_seqs,
        blocks=-(-memory.max_model_len // cache.block_size),
        scratch_block=cache.blocks - 1,
        block_size=cache.block_size,
    )
    if isinstance(drafts, OpenedDraftModel):
        placed = DeviceModel(
            drafts.model, ops, cache, cache_dtype, max_rows=HEAD_TOKENS, max_model_len=context
        )
        backend = DeviceDraftModel(placed, ops, capturer, limits)
        own = replace(memory, cache=cache, max_model_len=context)
        vocab_sizes = drafts.target_vocab, drafts.model.spec.vocab_size
        return PlacedDrafter(
            "draft_model",
            backend.pools,
            backend.steps,
            lambda rows: DraftModel(rows, backend, own, vocab_sizes),
        )
    assert isinstance(drafts, OpenedMtp), "size_drafter refuses the others"
    head = target.make_head(drafts.head, cache, cache_dtype, capturer, limits, context)
    vocab_sizes = drafts.spec.vocab_size, drafts.spec.vocab_size
    return PlacedDrafter(
        "mtp",
        head.pools,
        head.steps,
        lambda rows: MtpDrafter(rows, head, DraftSampler(rows, CpuSampler(ops), vocab_sizes)),
    )
