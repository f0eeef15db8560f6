"""The memory formula of a GPU engine, computed before anything large is allocated.

The terms are weights, adapters, slots, cache, recurrent states, drafter, work of a step, graphs,
rows, rope tables, buffers of the CPU KV cache, and a fixed amount. The KV cache gets all memory
that the other terms leave, unless its size is set. No profiling run is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.base.errors import ModelError
from penstock.config import GPU_STEP_SIZES, EngineSettings, StepSizes
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.drafts.memory import NO_DRAFTER, DrafterMemory
from penstock.runtime.gpu.memory_terms import (
    graph_bytes,
    rope_bytes,
    row_bytes,
    slot_bytes,
    work_bytes,
)
from penstock.runtime.mebibytes import MIB, mib
from penstock.runtime.memory import lora_bytes, ngram_index_bytes, refuse_8_bit_cache
from penstock.runtime.state_memory import NO_STATES, StateMemory, state_memory
from penstock.scheduler import step_token_limit

SHARE = 0.92
"""Share of the free memory that an engine uses. The rest is for allocators, which round up, and for
other processes."""

CACHE_SHARE = 0.7
"""The default step sizes are increased only if the KV cache still gets this share of the memory
that weights and adapters leave."""

FIXED_BYTES = 384 * MIB
"""Kernel code, cuBLAS workspaces, and memory that the allocator does not return."""

ARRIVING_BLOCKS = 32
"""Number of blocks that are restored from the CPU KV cache at a time."""

SAVED_BYTES = 256 * MIB
"""Size of the device buffer for blocks that are being saved to the CPU KV cache."""


@dataclass(frozen=True, slots=True)
class DeviceMemoryPlan:
    """The memory of an engine on a device, in bytes, and the sizes that determine it.

    `cache`: has one block more than sequences may use, for padding.
    `max_model_len`: most tokens of a sequence.
    `step_tokens`: most tokens of a step.
    `sizes`: most rows, and the token budget of a step.
    `adapter_bytes`: most memory of adapters in use at the same time, without the tables of their
    slots.
    `cpu_blocks`: blocks of the CPU KV cache.
    `max_saves_per_step`: most blocks that a step saves to the CPU KV cache.
    `devices`: number of tensor-parallel devices. All other fields except `ngram_index_bytes`
    describe one of them.
    `ngram_index_bytes`: host memory of the n-gram indexes, once for all devices.
    `states`: recurrent states of the rows, of one more row for padding, and of snapshots.
    `drafter`: the model that proposes draft tokens.
    """

    weight_bytes: int
    cache: CacheShape
    work_bytes: int
    graph_bytes: int
    row_bytes: int
    rope_bytes: int
    max_model_len: int
    step_tokens: int
    sizes: StepSizes
    adapter_bytes: int = 0
    slot_bytes: int = 0
    cpu_blocks: int = 0
    max_saves_per_step: int = 0
    devices: int = 1
    ngram_index_bytes: int = 0
    states: StateMemory = NO_STATES
    drafter: DrafterMemory = NO_DRAFTER

    @property
    def block_bytes(self) -> int:
        """Size of a KV block, in the cache of the drafter too."""
        return (self.cache.size_bytes + self.drafter.cache_bytes) // self.cache.blocks

    @property
    def cpu_cache_bytes(self) -> int:
        """Host memory of the CPU KV cache of one device."""
        return self.cpu_blocks * self.block_bytes

    @property
    def host_memory_bytes(self) -> int:
        """Host memory of all devices together."""
        return self.devices * self.cpu_cache_bytes + self.ngram_index_bytes

    @property
    def aside_bytes(self) -> int:
        """Memory of the device buffers for blocks that are being saved to the CPU KV cache or
        restored from it."""
        arriving = min(self.cpu_blocks, ARRIVING_BLOCKS)
        return (self.max_saves_per_step + arriving) * self.block_bytes

    def terms(self) -> dict[str, int]:
        """Return the bytes of every term of the memory formula, by name."""
        return {
            "weights": self.weight_bytes,
            "adapters": self.adapter_bytes,
            "slots": self.slot_bytes,
            "cache": self.cache.size_bytes,
            "states": self.states.size_bytes,
            "drafter": self.drafter.size_bytes,
            "work": self.work_bytes,
            "graphs": self.graph_bytes,
            "rows": self.row_bytes,
            "rope": self.rope_bytes,
            "aside": self.aside_bytes,
            "fixed": FIXED_BYTES,
        }

    @property
    def total_bytes(self) -> int:
        return sum(self.terms().values())

    def formula(self) -> str:
        """Return the memory formula in one line, with every term in MiB."""
        cache = self.cache
        adapters = aside = host = ""
        where = "of the device"
        if self.devices > 1:
            where = f"on each of {self.devices} devices"
        if self.cpu_blocks:
            aside = f"{mib(self.aside_bytes)} CPU KV cache buffers + "
            cpu_cache = mib(self.devices * self.cpu_cache_bytes)
            host = f", and {cpu_cache} MiB of host memory ({self.cpu_blocks} blocks)"
        if self.ngram_index_bytes:
            host += f", and {mib(self.ngram_index_bytes)} MiB of host memory (n-gram index)"
        if self.adapter_bytes:
            adapters = f"{mib(self.adapter_bytes)} adapters + {mib(self.slot_bytes)} slots + "
        return (
            f"{mib(self.weight_bytes)} weights + {adapters}"
            f"{mib(cache.size_bytes)} cache ({cache.describe()}) + {self.states.term()}"
            f"{self.drafter.terms()}"
            f"{mib(self.work_bytes)} work ({self.step_tokens} tokens a step) + "
            f"{mib(self.graph_bytes)} graphs + "
            f"{mib(self.row_bytes)} rows ({self.sizes.max_num_seqs} sequences) + "
            f"{mib(self.rope_bytes)} rope + "
            f"{aside}{mib(FIXED_BYTES)} fixed = {mib(self.total_bytes)} MiB {where}{host}"
        )


SizeDrafter = Callable[[DeviceMemoryPlan], DrafterMemory]
"""Returns the memory of a drafter beside a plan that has none."""


def plan_device_memory(
    spec: DecoderSpec,
    weight_bytes: int,
    settings: EngineSettings,
    free_bytes: int,
    drafter: SizeDrafter | None = None,
) -> DeviceMemoryPlan:
    """Return the memory plan of a model on a device with `free_bytes` of free memory.

    With tensor parallelism, `spec` and `weight_bytes` describe one shard, and `free_bytes` is the
    smallest of all devices. If the settings do not determine the step sizes, the largest of
    `GPU_STEP_SIZES` that leave enough memory for the cache are used. `drafter`: None without one.
    Raises ModelError with the numbers if the model does not fit.
    """
    wanted = dict.fromkeys(settings.step_sizes(sizes) for sizes in GPU_STEP_SIZES)
    *larger, least = wanted
    for sizes in larger:
        try:
            plan = _plan_steps(spec, weight_bytes, settings, sizes, free_bytes, drafter)
        except ModelError:
            continue
        weights = plan.weight_bytes + plan.adapter_bytes + plan.drafter.weight_bytes
        caches = plan.cache.size_bytes + plan.drafter.cache_bytes
        if settings.kv_cache_memory_mb or caches >= CACHE_SHARE * (_usable(free_bytes) - weights):
            return plan
    return _plan_steps(spec, weight_bytes, settings, least, free_bytes, drafter)


def _usable(free_bytes: int) -> int:
    return int(SHARE * free_bytes)


def _plan_steps(
    spec: DecoderSpec,
    weight_bytes: int,
    settings: EngineSettings,
    sizes: StepSizes,
    free_bytes: int,
    drafter: SizeDrafter | None,
) -> DeviceMemoryPlan:
    """Return a memory plan for steps of these `sizes`. Raises ModelError if the model does not
    fit."""
    wanted_context = min(settings.max_model_len or spec.max_model_len, spec.max_model_len)
    one_block = CacheShape(
        blocks=1,
        block_size=settings.block_size,
        layers=spec.caches,
        item_bytes=cache_item_bytes(settings),
        shares_latents=True,
    )
    _refuse_cache_type(spec, settings)
    if spec.is_recurrent and settings.cpu_kv_cache_memory_mb:
        raise ModelError(
            f"cpu_kv_cache_memory_mb is {settings.cpu_kv_cache_memory_mb}; for a model with"
            " recurrent layers it must be 0"
        )
    adapter_bytes = lora_bytes(spec, settings, free_bytes)

    def sized(cache: CacheShape, context: int) -> DeviceMemoryPlan:
        plan = _sized(spec, weight_bytes, settings, sizes, cache, context)
        plan = replace(plan, adapter_bytes=adapter_bytes)
        if drafter is not None:
            plan = replace(plan, drafter=drafter(plan))
        cpu_blocks, max_saves_per_step = _cpu_blocks(settings, plan.block_bytes)
        return replace(plan, cpu_blocks=cpu_blocks, max_saves_per_step=max_saves_per_step)

    bare = sized(one_block, wanted_context)
    usable = _usable(free_bytes)
    if bare.block_bytes:
        blocks = (usable - (bare.total_bytes - bare.block_bytes)) // bare.block_bytes
        if settings.kv_cache_memory_mb is not None and one_block.size_bytes:
            blocks = settings.kv_cache_memory_mb * MIB // one_block.size_bytes
    else:  # no layer has a cache
        blocks = sizes.max_num_seqs * -(-wanted_context // settings.block_size) + 1
    least = -(-min(wanted_context, 2048) // settings.block_size) + 1
    plan = sized(replace(one_block, blocks=max(blocks, least)), wanted_context)
    if blocks < least or plan.total_bytes > usable:
        raise ModelError(
            f"the model does not fit: {plan.formula()}, but only {mib(usable)} MiB of "
            f"{mib(free_bytes)} MiB of free memory may be used; a smaller kv_cache_memory_mb, "
            "max_model_len, max_num_seqs or max_num_batched_tokens needs less"
            + plan.states.advice()
        )
    context = min(wanted_context, (plan.cache.blocks - 1) * settings.block_size)
    return sized(plan.cache, context)


def _sized(
    spec: DecoderSpec,
    weight_bytes: int,
    settings: EngineSettings,
    sizes: StepSizes,
    cache: CacheShape,
    context: int,
) -> DeviceMemoryPlan:
    step_tokens = step_token_limit(
        sizes.max_num_batched_tokens, context, no_kv_cache=settings.no_kv_cache
    )
    max_num_seqs = sizes.max_num_seqs
    return DeviceMemoryPlan(
        weight_bytes=weight_bytes,
        cache=cache,
        work_bytes=work_bytes(spec, settings, max_num_seqs, step_tokens, context),
        graph_bytes=graph_bytes(spec, settings, max_num_seqs),
        row_bytes=row_bytes(spec, settings, max_num_seqs, step_tokens, context),
        rope_bytes=rope_bytes(spec, context),
        max_model_len=context,
        step_tokens=step_tokens,
        sizes=sizes,
        slot_bytes=slot_bytes(spec, settings),
        devices=settings.tensor_parallel_size,
        ngram_index_bytes=ngram_index_bytes(settings, max_num_seqs, context),
        states=state_memory(spec, settings, max_num_seqs, padding_rows=1),
    )


def _refuse_cache_type(spec: DecoderSpec, settings: EngineSettings) -> None:
    """Raise ModelError if the caches of the model do not exist in the type that the settings
    name."""
    latent = any(size is not None and size.latent for size in spec.caches)
    if latent:
        refuse_8_bit_cache(settings, "a model with latent attention")


def cache_item_bytes(settings: EngineSettings) -> int:
    """Return the bytes per element of the KV cache: 1 for f8e4m3, 4 for f32, else 2. Raises
    ModelError for a dtype that only a CPU supports."""
    if settings.kv_cache_dtype == "int8":
        raise ModelError(
            "kv_cache_dtype int8 needs a CPU; on a GPU it must be auto, f16, f32 or f8e4m3, which"
            " has as many bits"
        )
    if settings.kv_cache_dtype == "f8e4m3":
        return 1
    wide = settings.kv_cache_dtype == "f32"
    return 4 if wide or (settings.kv_cache_dtype == "auto" and settings.dtype == "f32") else 2


def _cpu_blocks(settings: EngineSettings, block_bytes: int) -> tuple[int, int]:
    """Return the number of blocks of the CPU KV cache and how many of them a step may save. The
    size of a block includes its parts on all devices. Raises ModelError if `cpu_kv_cache_memory_mb`
    is smaller than one block."""
    blocks = settings.cpu_kv_cache_memory_mb * MIB // (settings.tensor_parallel_size * block_bytes)
    if settings.cpu_kv_cache_memory_mb and not blocks:
        raise ModelError(
            f"cpu_kv_cache_memory_mb is {settings.cpu_kv_cache_memory_mb}; it must be at least "
            f"{mib(settings.tensor_parallel_size * block_bytes)}, the MiB of one KV block"
        )
    return blocks, min(blocks, max(SAVED_BYTES // block_bytes, 1))
