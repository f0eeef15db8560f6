"""The closed formula of an engine's memory on a GPU, computed before anything large is allocated.

weights + cache + work of a step + graphs + rows + rope + fixed. What is not taken by the rest is
cache, unless a size is asked for. Nothing is tried out: no profiling run, so a start costs no step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.base.errors import ModelError
from penstock.config import GPU_STEP_SIZES, EngineSettings, StepSizes
from penstock.kernels.kv_splits import (
    FEW_ROWS,
    FEW_ROWS_SPLIT,
    most_splits,
    smallest_split,
)
from penstock.models.decoder.lora_targets import linear_sizes
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.adapters import SLOTS_AN_ADAPTER
from penstock.runtime.gpu.cuda_graphs import sizes_up_to
from penstock.runtime.gpu.row_table import rows_bytes
from penstock.runtime.gpu.step_packing import most_words
from penstock.runtime.memory import MIB, CacheShape, inner_bytes, lora_bytes, ngram_index_bytes
from penstock.scheduler import MAX_DRAFT_TOKENS, step_token_limit

SHARE = 0.92
"""Of the memory that is free, an engine takes so much: allocators round up, others may start."""

CACHE_SHARE = 0.7
"""Of the memory beside weights and adapters, the cache gets so much before step sizes that nobody
asked for may be large."""

FIXED_BYTES = 384 * MIB
"""Code of the kernels, workspaces of cuBLAS, what the allocator keeps back."""

GRAPH_BYTES = 12 * MIB
"""What the driver keeps for a captured step."""

VARIANTS = 2
"""A step is captured with its draw, and without where the host samples; both without adapters, and
with them where there are some."""

TILE_ROWS = 16
"""Decode attention keeps the parts of a context's chunks for a tile of so many queries."""


ARRIVING_BLOCKS = 32
"""Blocks that come back from the host are brought over in batches of so many."""

SAVED_BYTES = 256 * MIB
"""Blocks of up to so many bytes are put aside at a time, on their way to the host."""


@dataclass(frozen=True, slots=True)
class DeviceMemoryPlan:
    """What an engine will take of a device. `sizes`: the most rows, and the token budget;
    `step_tokens`: the largest step; `max_model_len`: the longest sequence; `cache` has one block
    more than sequences may have. `adapter_bytes`: what adapters in use at the same time may take,
    beside the tables of their slots. `cpu_blocks`: blocks of the host's memory, to which a step
    saves up to `max_saves_per_step`. `devices`: how many take as much each, of which all of this is one's.
    `ngram_index_bytes`: what speculation remembers of rows, on the host, once for all devices."""

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

    @property
    def block_bytes(self) -> int:
        return self.cache.size_bytes // self.cache.blocks

    @property
    def cpu_cache_bytes(self) -> int:
        """Of the host's memory, for the blocks of one device."""
        return self.cpu_blocks * self.block_bytes

    @property
    def host_memory_bytes(self) -> int:
        """Of the host's memory, for all devices."""
        return self.devices * self.cpu_cache_bytes + self.ngram_index_bytes

    @property
    def aside_bytes(self) -> int:
        """For blocks on their way to the host, and from there."""
        arriving = min(self.cpu_blocks, ARRIVING_BLOCKS)
        return (self.max_saves_per_step + arriving) * self.block_bytes

    def terms(self) -> dict[str, int]:
        """Every term of the formula by its name, in bytes."""
        return {
            "weights": self.weight_bytes,
            "adapters": self.adapter_bytes,
            "slots": self.slot_bytes,
            "cache": self.cache.size_bytes,
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
        """One line with every term in MiB."""
        cache = self.cache
        shape = (
            f"{cache.blocks} blocks x {cache.block_size} tokens x {cache.layers} layers x 2 x "
            f"{cache.kv_heads} heads x {cache.head_dim} x {cache.item_bytes} bytes"
        )
        adapters = aside = host = ""
        where = "of the device"
        if self.devices > 1:
            where = f"on each of {self.devices} devices"
        if self.cpu_blocks:
            aside = f"{_mib(self.aside_bytes)} to and from the host + "
            of_host = _mib(self.devices * self.cpu_cache_bytes)
            host = f", and {of_host} MiB of the host ({self.cpu_blocks} blocks)"
        if self.ngram_index_bytes:
            host += f", and {_mib(self.ngram_index_bytes)} MiB of the host (guesses)"
        if self.adapter_bytes:
            adapters = f"{_mib(self.adapter_bytes)} adapters + {_mib(self.slot_bytes)} slots + "
        return (
            f"{_mib(self.weight_bytes)} weights + {adapters}"
            f"{_mib(cache.size_bytes)} cache ({shape}) + "
            f"{_mib(self.work_bytes)} work ({self.step_tokens} tokens a step) + "
            f"{_mib(self.graph_bytes)} graphs + "
            f"{_mib(self.row_bytes)} rows ({self.sizes.max_num_seqs} sequences) + "
            f"{_mib(self.rope_bytes)} rope + "
            f"{aside}{_mib(FIXED_BYTES)} fixed = {_mib(self.total_bytes)} MiB {where}{host}"
        )


def plan_device_memory(
    spec: DecoderSpec, weight_bytes: int, settings: EngineSettings, free_bytes: int
) -> DeviceMemoryPlan:
    """Sizes for `spec` on a device with `free_bytes` left; for tensor-parallel devices, `spec` and
    `weight_bytes` are of one shard, and `free_bytes` are left on each device. Step sizes that the
    settings leave open are the largest of `GPU_STEP_SIZES` that leave enough to the cache. Raises
    ModelError with the numbers if the model does not fit."""
    wanted = dict.fromkeys(settings.step_sizes(sizes) for sizes in GPU_STEP_SIZES)
    *larger, least = wanted
    for sizes in larger:
        try:
            plan = _plan_steps(spec, weight_bytes, settings, sizes, free_bytes)
        except ModelError:
            continue
        beside_weights = _usable(free_bytes) - plan.weight_bytes - plan.adapter_bytes
        if settings.cache_mb or plan.cache.size_bytes >= CACHE_SHARE * beside_weights:
            return plan
    return _plan_steps(spec, weight_bytes, settings, least, free_bytes)


def _usable(free_bytes: int) -> int:
    return int(SHARE * free_bytes)


def _plan_steps(
    spec: DecoderSpec,
    weight_bytes: int,
    settings: EngineSettings,
    sizes: StepSizes,
    free_bytes: int,
) -> DeviceMemoryPlan:
    """A plan for steps of these `sizes`. Raises ModelError if it does not fit."""
    wanted_context = min(settings.max_model_len or spec.max_model_len, spec.max_model_len)
    one_block = CacheShape(
        blocks=1,
        block_size=settings.block_size,
        layers=len(spec.layers),
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        item_bytes=cache_item_bytes(settings),
    )
    cpu_blocks, max_saves_per_step = _cpu_blocks(settings, one_block.size_bytes)
    adapter_bytes = lora_bytes(spec, settings, free_bytes)

    def sized(cache: CacheShape, context: int) -> DeviceMemoryPlan:
        return replace(
            _sized(spec, weight_bytes, settings, sizes, cache, context),
            adapter_bytes=adapter_bytes,
            cpu_blocks=cpu_blocks,
            max_saves_per_step=max_saves_per_step,
        )

    bare = sized(one_block, wanted_context)
    usable = _usable(free_bytes)
    left = usable - (bare.total_bytes - one_block.size_bytes)
    blocks = left // one_block.size_bytes
    if settings.cache_mb is not None:
        blocks = settings.cache_mb * MIB // one_block.size_bytes
    least = -(-min(wanted_context, 2048) // settings.block_size) + 1
    plan = replace(bare, cache=replace(one_block, blocks=max(blocks, least)))
    if blocks < least or plan.total_bytes > usable:
        raise ModelError(
            f"the model does not fit: {plan.formula()}, and {_mib(usable)} MiB of "
            f"{_mib(free_bytes)} free ones may be used; a smaller cache_mb, max_model_len, "
            "max_num_seqs or max_num_batched_tokens needs less"
        )
    context = min(wanted_context, (plan.cache.blocks - 1) * settings.block_size)
    return sized(plan.cache, context)


def cache_item_bytes(settings: EngineSettings) -> int:
    """Bytes of one element of the cache: 1 for f8e4m3, 4 for f32, else 2."""
    if settings.cache_dtype == "f8e4m3":
        return 1
    wide = settings.cache_dtype == "f32"
    return 4 if wide or (settings.cache_dtype == "auto" and settings.dtype == "f32") else 2


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
    places = sizes.max_num_seqs + MAX_DRAFT_TOKENS
    graph_sizes = sizes_up_to(sizes.max_num_seqs)
    item = 4 if settings.dtype == "f32" else 2
    largest = graph_sizes[-1]
    shared = spec.heads // spec.kv_heads
    kept = _attention_bytes(spec, largest, context, shared)
    kept += _attention_bytes(spec, min(FEW_ROWS, largest), context, shared, FEW_ROWS_SPLIT)
    mixed = _attention_bytes(spec, sizes.max_num_seqs, context, TILE_ROWS)
    work = activation_bytes(spec, step_tokens, places, item) + kept + mixed
    work += inner_bytes(settings, step_tokens)
    work += _gathered_bytes(spec, settings, step_tokens, min(places, step_tokens), item)
    logits = 4 * spec.vocab * sum(graph_sizes)  # each keeps its own; what lies between is shared
    graphs = activation_bytes(spec, largest, largest, item)
    graphs += inner_bytes(settings, largest)
    graphs += _gathered_bytes(spec, settings, largest, largest, item)
    variants = VARIANTS if settings.lora is None else 2 * VARIANTS
    graphs += variants * (logits + GRAPH_BYTES * len(graph_sizes))
    return DeviceMemoryPlan(
        weight_bytes=weight_bytes,
        cache=cache,
        work_bytes=work,
        graph_bytes=graphs,
        row_bytes=_row_bytes(spec, settings, sizes.max_num_seqs, step_tokens, context),
        rope_bytes=rope_bytes(spec, context),
        max_model_len=context,
        step_tokens=step_tokens,
        sizes=sizes,
        slot_bytes=slot_bytes(spec, settings),
        devices=settings.tensor_parallel,
        ngram_index_bytes=ngram_index_bytes(settings, sizes.max_num_seqs, context),
    )


def _row_bytes(
    spec: DecoderSpec, settings: EngineSettings, seqs: int, step_tokens: int, context: int
) -> int:
    """Bytes of the table of `seqs` rows, of a step's inputs and of what the host sends for one."""
    largest, blocks = sizes_up_to(seqs)[-1], -(-context // settings.block_size)
    slots = 0 if settings.lora is None else SLOTS_AN_ADAPTER * settings.lora.max_adapters
    words = most_words(seqs, largest, step_tokens, blocks, slots)
    places = max(largest, seqs + MAX_DRAFT_TOKENS)
    tokens = max(step_tokens, largest)
    return 4 * words + rows_bytes(seqs, blocks, largest, tokens, places, spec.vocab)


def rope_bytes(spec: DecoderSpec, max_model_len: int) -> int:
    """Of the tables that rotate queries and keys, float32: that of the model, that of its layers
    with a window where it is another, and two columns for layers that have none."""
    local = 0 if spec.local_rope is None else spec.local_rope.rotary_dim
    return 4 * max_model_len * (spec.rope.rotary_dim + local + 2)


def _cpu_blocks(settings: EngineSettings, block_bytes: int) -> tuple[int, int]:
    """Blocks that the host has room for, with the parts of all devices, and how many of them a step
    may fill. Raises ModelError where it has room for none."""
    blocks = settings.host_cache_mb * MIB // (settings.tensor_parallel * block_bytes)
    if settings.host_cache_mb and not blocks:
        raise ModelError(
            f"host_cache_mb is {settings.host_cache_mb}; a block of the cache takes "
            f"{_mib(settings.tensor_parallel * block_bytes)} MiB"
        )
    return blocks, min(blocks, max(SAVED_BYTES // block_bytes, 1))


def _gathered_bytes(
    spec: DecoderSpec, settings: EngineSettings, tokens: int, places: int, item_bytes: int
) -> int:
    """What comes of all devices beside what one of them gives: logits, and where sums have one
    order, their parts and two sums in float32."""
    devices = settings.tensor_parallel
    if devices == 1:
        return 0
    logits = (devices + 1) * places * -(-spec.vocab // devices) * item_bytes
    parts = tokens * spec.width * (devices * item_bytes + 2 * 4) if settings.deterministic else 0
    return logits + parts


def slot_bytes(spec: DecoderSpec, settings: EngineSettings) -> int:
    """Of each slot and projection: where two factors lie, 8 bytes each, a rank, and a scale for
    each of the largest rank."""
    if settings.lora is None:
        return 0
    projections = sum(len(rows) for _, rows in linear_sizes(spec))
    slots = SLOTS_AN_ADAPTER * settings.lora.max_adapters
    return slots * projections * (2 * 8 + 4 + 4 * settings.lora.max_rank)


def activation_bytes(spec: DecoderSpec, tokens: int, places: int, item_bytes: int) -> int:
    """An upper bound of what a step's activations take, and its logits, as computed and as
    float32. See `memory.buffer_bytes`. Where weights are 8-bit floats, the copy in 8 bits of what a
    product reads is within it: the halves of the feed-forward are gone when their product is read.
    """
    attention = 3 * spec.q_rows + 2 * spec.kv_rows
    per_token = 3 * spec.width + max(attention, spec.inner_columns)
    return tokens * per_token * item_bytes + min(places, tokens) * spec.vocab * (item_bytes + 4)


def _attention_bytes(
    spec: DecoderSpec, rows: int, context: int, lanes: int, chunk: int | None = None
) -> int:
    """Parts of the contexts of `rows` rows, float32, with two numbers each, for each window.
    `chunk`: keys of the smallest chunk, if it is not that of the table."""
    chunks = most_splits(context, chunk or smallest_split())
    windows = len({layer.window for layer in spec.layers})
    return windows * rows * chunks * spec.kv_heads * lanes * (spec.head_dim + 2) * 4


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB):,}"
