"""The memory formula of a CPU engine: weights + towers + adapters + KV cache + recurrent states +
drafter + encoder cache + step buffers + rows + penalties and DRY + n-gram index + fixed.

The formula is computed from the model's sizes and the settings before anything large is allocated.
A model that does not fit is refused with an error that names the numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.base.errors import ModelError
from penstock.config import CPU_STEP_SIZES, EngineSettings, StepSizes
from penstock.models.decoder.lora_targets import adapter_bytes
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.drafts.memory import NO_DRAFTER, DrafterMemory
from penstock.runtime.mebibytes import MIB, mib
from penstock.runtime.media_memory import NO_MEDIA, MediaMemory
from penstock.runtime.state_memory import NO_STATES, StateMemory, state_memory
from penstock.scheduler import MAX_DRAFT_TOKENS, NGRAM_INDEX_BYTES, step_token_limit

log = logging.getLogger(__name__)

FIXED_BYTES = 96 * MIB
"""The interpreter, the libraries, the tokenizer, and memory that the allocator does not return."""

DEFAULT_TOKENS_PER_SEQUENCE = 1024
MIN_CONTEXT = 16
HISTORY_BYTES = 64 + 160
"""Most bytes per token that penalties and DRY store for a row that uses both."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a CPU engine, in bytes, and the sizes that determine it.

    `buffer_bytes`: activations and logits of a step.
    `row_bytes`: tokens and block tables of the persistent batch.
    `history_bytes`: penalties and DRY.
    `max_model_len`: most tokens of a sequence.
    `step_tokens`: most tokens of a step.
    `sizes`: most rows, and the token budget of a step.
    `adapter_bytes`: most memory of adapters in use at the same time.
    `ngram_index_bytes`: indexes of n-gram speculation.
    `media`: towers and encoded media.
    `states`: recurrent states of rows and snapshots.
    `drafter`: the model that proposes draft tokens.
    """

    weight_bytes: int
    cache: CacheShape
    buffer_bytes: int
    row_bytes: int
    history_bytes: int
    max_model_len: int
    step_tokens: int
    sizes: StepSizes
    adapter_bytes: int = 0
    ngram_index_bytes: int = 0
    media: MediaMemory = NO_MEDIA
    states: StateMemory = NO_STATES
    drafter: DrafterMemory = NO_DRAFTER

    @property
    def total_bytes(self) -> int:
        rows = self.row_bytes + self.history_bytes + self.ngram_index_bytes
        weights = self.weight_bytes + self.adapter_bytes + self.media.total_bytes
        caches = self.cache.size_bytes + self.states.size_bytes + self.drafter.size_bytes
        return weights + caches + self.buffer_bytes + rows + FIXED_BYTES

    def formula(self) -> str:
        """Return the memory formula in one line, with every term in MiB."""
        cache = self.cache
        adapters = f"{mib(self.adapter_bytes)} adapters + " if self.adapter_bytes else ""
        index = f"{mib(self.ngram_index_bytes)} n-gram index + " if self.ngram_index_bytes else ""
        return (
            f"{mib(self.weight_bytes)} weights + {media_terms(self.media)}{adapters}"
            f"{mib(cache.size_bytes)} cache ({cache.describe()}) + {self.states.term()}"
            f"{self.drafter.terms()}"
            f"{mib(self.buffer_bytes)} buffers ({self.step_tokens} tokens a step) + "
            f"{mib(self.row_bytes)} rows + {mib(self.history_bytes)} penalties and DRY + "
            f"{index}{mib(FIXED_BYTES)} fixed = "
            f"{mib(self.total_bytes)} MiB"
        )


def media_terms(media: MediaMemory) -> str:
    """Return the terms of the memory formula for media in MiB, each with a plus sign after it."""
    if not media.total_bytes:
        return ""
    return (
        f"{mib(media.tower_bytes)} towers + {mib(media.cache_bytes)} encoder cache + "
        f"{mib(media.scratch_bytes + media.row_bytes)} media buffers + "
    )


def plan_memory(
    spec: DecoderSpec,
    weight_bytes: int,
    settings: EngineSettings,
    available_bytes: int | None,
    media: MediaMemory = NO_MEDIA,
    drafter: Callable[[MemoryPlan], DrafterMemory] | None = None,
) -> MemoryPlan:
    """Return the memory plan of an engine for `spec` within `available_bytes` (None: not checked).

    The limit of adapters is the size of `max_adapters` adapters of the largest rank, but at most
    `lora_max_bytes` and a quarter of the available memory; further adapters wait on disk. The KV
    cache shrinks to fit unless `kv_cache_memory_mb` or `max_model_len` is set. `drafter` returns
    the memory of the drafter beside a plan, None without one. Raises ModelError
    with the numbers if the model does not fit.
    """
    if settings.cpu_kv_cache_memory_mb:
        raise ModelError(
            "cpu_kv_cache_memory_mb needs a GPU; on a CPU, set kv_cache_memory_mb instead"
        )
    item_bytes, scale_bytes = cache_type_bytes(settings)
    one_block = CacheShape(
        blocks=1,
        block_size=settings.block_size,
        layers=spec.caches,
        item_bytes=item_bytes,
        scale_bytes=scale_bytes,
    )
    if scale_bytes and any(size is not None and size.latent for size in spec.caches):
        refuse_8_bit_cache(settings, "a model with latent attention")
    wanted_context = min(settings.max_model_len or spec.max_model_len, spec.max_model_len)
    blocks = _wanted_blocks(settings, wanted_context, one_block)
    adapters = lora_bytes(spec, settings, available_bytes)

    def sized(blocks: int) -> MemoryPlan:
        cache = replace(one_block, blocks=blocks)
        plan = _beside_weights(spec, settings, cache, wanted_context)
        plan = replace(plan, weight_bytes=weight_bytes, adapter_bytes=adapters, media=media)
        return plan if drafter is None else replace(plan, drafter=drafter(plan))

    plan = sized(blocks)
    if available_bytes is None or plan.total_bytes <= available_bytes:
        return plan
    may_shrink = settings.kv_cache_memory_mb is None and settings.max_model_len is None
    if may_shrink and one_block.size_bytes:
        excess = plan.total_bytes - available_bytes
        block_bytes = one_block.size_bytes + plan.drafter.cache_bytes // blocks
        fewer = blocks - _ceil(excess, block_bytes)
        if fewer * settings.block_size >= DEFAULT_TOKENS_PER_SEQUENCE:
            return sized(fewer)
    refuse_excess(
        plan,
        available_bytes,
        "a smaller kv_cache_memory_mb, max_model_len, max_num_seqs or max_num_batched_tokens"
        " needs less"
        + (", and so does a smaller encoder_cache_mb" if media.total_bytes else "")
        + plan.states.advice(),
    )
    return plan


def warn_of_short_context(spec: DecoderSpec, settings: EngineSettings, plan: MemoryPlan) -> None:
    """Log a warning if the KV cache is too small for one sequence of `max_model_len` tokens (of the
    settings or else of the model). The warning names a sufficient size."""
    wanted = min(settings.max_model_len or spec.max_model_len, spec.max_model_len)
    if plan.max_model_len >= wanted:
        return
    cache = plan.cache
    enough = replace(cache, blocks=_ceil(wanted, cache.block_size))
    log.warning(
        "the context is %s tokens, because the KV cache of %s MiB holds no more; %s tokens need"
        " a kv_cache_memory_mb of %s",
        f"{plan.max_model_len:,}",
        mib(cache.size_bytes),
        f"{wanted:,}",
        mib(enough.size_bytes),
    )


def refuse_excess(plan: MemoryPlan, available_bytes: int | None, advice: str) -> None:
    """Raise ModelError with the numbers and `advice` if a plan needs more than `available_bytes`
    (None: not checked)."""
    refuse_bytes(plan.total_bytes, available_bytes, plan.formula(), advice)


def refuse_bytes(needed: int, available_bytes: int | None, formula: str, advice: str) -> None:
    """Raise ModelError with `formula` and `advice` if `needed` bytes are more than
    `available_bytes` (None: not checked)."""
    if available_bytes is None or needed <= available_bytes:
        return
    raise ModelError(
        f"the model does not fit: {formula}, but {mib(available_bytes)} MiB are available; {advice}"
    )


def cache_type_bytes(settings: EngineSettings) -> tuple[int, int]:
    """Return the bytes of an element of the KV cache, and of the scale of each key and each value
    of a KV head (0: no scales). Raises ModelError for a dtype that only a GPU supports."""
    if settings.kv_cache_dtype == "f8e4m3":
        raise ModelError(
            "kv_cache_dtype f8e4m3 needs a GPU; on a CPU it must be auto, f16, f32 or int8, which"
            " has as many bits"
        )
    auto = "f32" if settings.dtype == "f32" else "f16"
    name = auto if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
    return {"f32": (4, 0), "f16": (2, 0), "int8": (1, 4)}[name]


def refuse_8_bit_cache(settings: EngineSettings, model: str) -> None:
    """Raise ModelError if the settings ask for an 8-bit cache, which `model` cannot have."""
    if settings.kv_cache_dtype in ("int8", "f8e4m3"):
        raise ModelError(
            f"kv_cache_dtype is {settings.kv_cache_dtype}; for {model} it must be auto, f16 or f32"
        )


def _wanted_blocks(settings: EngineSettings, max_model_len: int, one_block: CacheShape) -> int:
    per_block = one_block.block_size
    if settings.kv_cache_memory_mb is None or not one_block.size_bytes:
        rows = settings.step_sizes(CPU_STEP_SIZES).max_num_seqs
        for_sequences = rows * _ceil(DEFAULT_TOKENS_PER_SEQUENCE, per_block)
        return max(for_sequences, _ceil(max_model_len, per_block))
    blocks = settings.kv_cache_memory_mb * MIB // one_block.size_bytes
    least = MIN_CONTEXT if settings.max_model_len is None else max_model_len
    if blocks * per_block < least:
        enough = mib(_ceil(least, per_block) * one_block.size_bytes)
        raise ModelError(
            f"kv_cache_memory_mb is {settings.kv_cache_memory_mb}, which holds {blocks * per_block}"
            f" tokens of this "
            f"model; it must hold {least} tokens, which need {enough} MiB"
        )
    return blocks


def _beside_weights(
    spec: DecoderSpec, settings: EngineSettings, cache: CacheShape, wanted_context: int
) -> MemoryPlan:
    """Return a memory plan in which weights and adapters are 0."""
    context = min(wanted_context, cache.blocks * cache.block_size)
    sizes = settings.step_sizes(CPU_STEP_SIZES)
    step_tokens = step_token_limit(
        sizes.max_num_batched_tokens, context, no_kv_cache=settings.no_kv_cache
    )
    return MemoryPlan(
        weight_bytes=0,
        cache=cache,
        buffer_bytes=buffer_bytes(spec, step_tokens, sizes.max_num_seqs, context)
        + lora_buffer_bytes(settings, step_tokens),
        row_bytes=4 * sizes.max_num_seqs * (context + _ceil(context, cache.block_size)),
        history_bytes=HISTORY_BYTES * sizes.max_num_seqs * context,
        max_model_len=context,
        step_tokens=step_tokens,
        sizes=sizes,
        ngram_index_bytes=ngram_index_bytes(settings, sizes.max_num_seqs, context),
        states=state_memory(spec, settings, sizes.max_num_seqs),
    )


def ngram_index_bytes(settings: EngineSettings, max_num_seqs: int, max_model_len: int) -> int:
    """Return the bytes of the n-gram indexes of `max_num_seqs` sequences of the maximum length, 0
    without n-gram speculation."""
    return NGRAM_INDEX_BYTES * max_num_seqs * max_model_len if settings.speculates else 0


def lora_bytes(spec: DecoderSpec, settings: EngineSettings, available_bytes: int | None) -> int:
    """Return the most bytes of adapters in use at the same time, 0 without LoRA settings."""
    lora = settings.lora
    if lora is None:
        return 0
    item_bytes = 4 if settings.dtype == "f32" else 2
    most = lora.max_adapters * adapter_bytes(spec, lora.max_rank, item_bytes)
    bounds = [most, lora.max_bytes]
    room = min(bounds if available_bytes is None else [*bounds, available_bytes // 4])
    return max(room, lora.reserved_bytes)


def lora_buffer_bytes(settings: EngineSettings, step_tokens: int) -> int:
    """Return the bytes of the intermediate values between the two LoRA factors of q, k and v at the
    largest rank."""
    lora = settings.lora
    return 0 if lora is None else 4 * step_tokens * 3 * 16 * _ceil(lora.max_rank, 16)


def buffer_bytes(spec: DecoderSpec, step_tokens: int, max_num_seqs: int, max_model_len: int) -> int:
    """Return an upper bound of the bytes of a step's float32 activations, its logits and the rope
    table.

    At most the residual and the layer's input [T, W] are in memory at the same time, with either q,
    k, v and the attention output, or the activations of the feed-forward. In large steps, each
    thread holds feed-forward activations only for the few tokens that it works on
    (docs/decisions/0017).
    """
    per_token = spec.stream_columns + max(spec.mixer_columns, spec.inner_columns)
    logits = min(max_num_seqs + MAX_DRAFT_TOKENS, step_tokens) * spec.vocab_size
    local = 0 if spec.local_rope is None else spec.local_rope.rotary_dim
    tables = max_model_len * (spec.rope.rotary_dim + local)
    return 4 * (step_tokens * per_token + logits + tables)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
