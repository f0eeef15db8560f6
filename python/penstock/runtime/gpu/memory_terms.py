"""Upper bounds of the terms of a GPU engine's memory formula, except weights and KV cache."""

from __future__ import annotations

from penstock.config import EngineSettings, StepSizes
from penstock.kernels.kv_splits import FEW_ROWS, FEW_ROWS_SPLIT, most_splits, smallest_split
from penstock.kernels.recurrent_state import matrix_ring
from penstock.models.decoder.lora_targets import linear_sizes
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.adapters import SLOTS_PER_ADAPTER
from penstock.runtime.gpu.attention_shapes import attention_shapes
from penstock.runtime.gpu.cuda_graphs import sizes_up_to
from penstock.runtime.gpu.row_table import rows_bytes
from penstock.runtime.gpu.sent_inputs import sent_words
from penstock.runtime.gpu.step_packing import max_words
from penstock.runtime.mebibytes import MIB
from penstock.runtime.memory import lora_buffer_bytes
from penstock.scheduler import MAX_DRAFT_TOKENS

GRAPH_BYTES = 12 * MIB
"""Memory that the driver needs for one captured step."""

HEAD_TOKENS = MAX_DRAFT_TOKENS + 1
"""Most tokens of a captured step of a drafter: all drafts of a step, and one more."""

HEAD_GRAPH_BYTES = MIB
"""Memory that the driver needs for each layer of a drafter in a captured step, at most
`GRAPH_BYTES`."""

FORMS = 2
"""Number of variants of a captured step: sampled by the device or by the CPU. With LoRA settings,
each of them exists with and without adapters."""


def work_bytes(
    spec: DecoderSpec, settings: EngineSettings, max_num_seqs: int, step_tokens: int, context: int
) -> int:
    """Return the bytes that the largest step, a prefill, needs: activations, partial results of
    attention, pending tokens of recurrent layers, LoRA buffers and, with several devices, buffers
    of collectives."""
    places, item_bytes = max_num_seqs + MAX_DRAFT_TOKENS, _item_bytes(settings)
    largest = sizes_up_to(max_num_seqs)[-1]
    decode = _decode_attention_bytes(spec, largest, context)
    mixed = _attention_bytes(spec, max_num_seqs, context, smallest_split(), one_token=False)
    work = activation_bytes(spec, step_tokens, places, item_bytes) + decode + mixed
    work += _pending_bytes(spec, settings, max_num_seqs)
    work += lora_buffer_bytes(settings, step_tokens)
    return work + _gathered_bytes(spec, settings, step_tokens, min(places, step_tokens), item_bytes)


def graph_bytes(spec: DecoderSpec, settings: EngineSettings, max_num_seqs: int) -> int:
    """Return the bytes of all CUDA graphs. Each graph keeps its own logits; they share all other
    buffers."""
    sizes, item_bytes = sizes_up_to(max_num_seqs), _item_bytes(settings)
    largest = sizes[-1]
    shared = activation_bytes(spec, largest, largest, item_bytes)
    shared += lora_buffer_bytes(settings, largest)
    shared += _gathered_bytes(spec, settings, largest, largest, item_bytes)
    forms = FORMS if settings.lora is None else 2 * FORMS
    logits = 4 * spec.vocab_size * sum(sizes)
    return shared + forms * (logits + GRAPH_BYTES * len(sizes))


def row_bytes(
    spec: DecoderSpec, settings: EngineSettings, max_num_seqs: int, step_tokens: int, context: int
) -> int:
    """Return the bytes of the persistent batch, of the inputs of a step, and of the words sent to
    the device."""
    largest, blocks = sizes_up_to(max_num_seqs)[-1], -(-context // settings.block_size)
    slots = 0 if settings.lora is None else SLOTS_PER_ADAPTER * settings.lora.max_adapters
    words = max_words(
        max_num_seqs, largest, step_tokens, blocks, slots, recurrent=spec.is_recurrent
    )
    places = max(largest, max_num_seqs + MAX_DRAFT_TOKENS)
    tokens = max(step_tokens, largest)
    return 4 * words + rows_bytes(max_num_seqs, blocks, largest, tokens, places, spec.vocab_size)


def head_bytes(
    spec: DecoderSpec, settings: EngineSettings, sizes: StepSizes, step_tokens: int, context: int
) -> int:
    """Return the bytes that an MTP head needs beside its weights and its cache: its captured steps,
    and the hidden states of the target's steps. A step over a prompt uses the memory of the
    target's. `spec`: the head as a decoder."""
    states = step_tokens + FORMS * sum(sizes_up_to(sizes.max_num_seqs)) + HEAD_TOKENS
    hidden_bytes = _item_bytes(settings) * spec.hidden_size * states
    return hidden_bytes + _draft_step_bytes(spec, settings, sizes, step_tokens, context)


def draft_model_bytes(
    spec: DecoderSpec, settings: EngineSettings, sizes: StepSizes, step_tokens: int, context: int
) -> int:
    """Return the bytes that a draft model needs beside its weights and its cache: its captured
    steps, a step over prompts, and its rope tables."""
    largest = work_bytes(spec, settings, sizes.max_num_seqs, step_tokens, context)
    tables = rope_bytes(spec, context)
    return largest + tables + _draft_step_bytes(spec, settings, sizes, step_tokens, context)


def _draft_step_bytes(
    spec: DecoderSpec, settings: EngineSettings, sizes: StepSizes, step_tokens: int, context: int
) -> int:
    """Return the bytes of the inputs, work plans and graphs of the steps of a drafter."""
    item_bytes, blocks = _item_bytes(settings), -(-context // settings.block_size)
    rows = max(sizes.max_num_seqs, HEAD_TOKENS)
    words = sent_words(max(step_tokens, HEAD_TOKENS), rows, blocks)
    graphs = sizes_up_to(HEAD_TOKENS)
    kept = sum(graphs) * (4 * spec.vocab_size + item_bytes * spec.hidden_size)
    return (
        4 * words
        + _decode_attention_bytes(spec, HEAD_TOKENS, context)
        + activation_bytes(spec, HEAD_TOKENS, HEAD_TOKENS, item_bytes)
        + FORMS * (kept + min(GRAPH_BYTES, HEAD_GRAPH_BYTES * (1 + len(spec.layers))) * len(graphs))
    )


def rope_bytes(spec: DecoderSpec, max_model_len: int) -> int:
    """Return the bytes of the float32 rope tables: the model's table, the table of sliding-window
    layers if they have their own, and two columns for layers without rope."""
    local = 0 if spec.local_rope is None else spec.local_rope.rotary_dim
    return 4 * max_model_len * (spec.rope.rotary_dim + local + 2)


def slot_bytes(spec: DecoderSpec, settings: EngineSettings) -> int:
    """Return the bytes of the tables of the adapter slots. Per slot and projection, they hold the
    addresses of two factors (8 bytes each), a rank, and one scale per unit of the largest rank."""
    if settings.lora is None:
        return 0
    projections = sum(len(rows) for _, rows in linear_sizes(spec))
    slots = SLOTS_PER_ADAPTER * settings.lora.max_adapters
    return slots * projections * (2 * 8 + 4 + 4 * settings.lora.max_rank)


def activation_bytes(spec: DecoderSpec, tokens: int, places: int, item_bytes: int) -> int:
    """Return an upper bound of the bytes of a step's activations and of its logits, both as
    computed and as float32.

    `places`: number of tokens whose logits are computed. See `memory.buffer_bytes`. With 8-bit
    float weights, this includes the 8-bit copy of a product's input, because the halves of the
    feed-forward are freed before their product is read.
    """
    per_token = spec.stream_columns + max(spec.mixer_columns, spec.inner_columns)
    return tokens * per_token * item_bytes + min(places, tokens) * spec.vocab_size * (
        item_bytes + 4
    )


def _item_bytes(settings: EngineSettings) -> int:
    return 4 if settings.dtype == "f32" else 2


def _gathered_bytes(
    spec: DecoderSpec, settings: EngineSettings, tokens: int, places: int, item_bytes: int
) -> int:
    """Return the bytes of the buffers of collectives: the gathered logits and, in deterministic
    mode, the partial sums of all devices and two float32 sums."""
    devices = settings.tensor_parallel_size
    if devices == 1:
        return 0
    logits = (devices + 1) * places * -(-spec.vocab_size // devices) * item_bytes
    parts = (
        tokens * spec.hidden_size * (devices * item_bytes + 2 * 4) if settings.deterministic else 0
    )
    return logits + parts


def _decode_attention_bytes(spec: DecoderSpec, rows: int, context: int) -> int:
    """Return the bytes of `AttentionPlans` for steps of up to `rows` rows."""
    few = min(FEW_ROWS, rows)
    whole = _attention_bytes(spec, rows, context, smallest_split(), one_token=True)
    return whole + _attention_bytes(spec, few, context, FEW_ROWS_SPLIT, one_token=True)


def _attention_bytes(
    spec: DecoderSpec, rows: int, context: int, split: int, *, one_token: bool
) -> int:
    """Return the bytes of the float32 partial results of decode attention for `rows` rows, for all
    shapes of attention together.

    - `split`: smallest part of a context in keys.
    - `one_token`: the rows have one token each.
    """
    shapes = attention_shapes(spec)
    elements = sum(shape.part_elements(one_token=one_token) for shape in shapes)
    return 4 * rows * most_splits(context, split) * elements


def _pending_bytes(spec: DecoderSpec, settings: EngineSettings, rows: int) -> int:
    """Return the bytes of the copies of pending keys and decays with which the scan of a recurrent
    layer of `rows` rows works."""
    ring = matrix_ring(MAX_DRAFT_TOKENS if settings.speculates else 0)
    shapes = {shape for shape in spec.states if shape is not None}
    tokens = (shape.groups * shape.key_dim + shape.heads for shape in shapes)
    return 4 * rows * ring * max(tokens, default=0)
