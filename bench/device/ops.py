"""Each op of a decoder's step at the sizes of served models: its time beside its floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from bench.device.machine import Bench, Roofline, measure_roofline
from bench.device.model_shapes import SHAPES, Shape, float8_tiles
from bench.device.recurrent import recurrent_calls
from bench.device.result_log import Record
from penstock.kernels.gpu_kv_cache import CacheExtents, allocate_caches
from penstock.kernels.ops.attention import ATTENTION
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import HeadNorm, StepInputs
from penstock.kernels.weights import Dense, Float8, Linear

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A call, the bytes that it must move, and its operations."""

    name: str
    call: Callable[[], Any]
    moved_bytes: float
    operations: float = 0.0


def measure(bench: Bench, record: Record, only: str = "") -> None:
    """Run the section `ops`; `only` selects the pieces whose name contains it."""
    roofline = measure_roofline(bench)
    shape = SHAPES["qwen3-8b"]
    widths: tuple[int, ...] = (1, 32, 256)
    context = 1024
    if bench.rehearsed:
        shape, widths, context = shape.small(), (1, 3), 40
    for width in widths:
        record.title(f"ops of {shape.name}, {width} tokens, {context} tokens of context each")
        for piece in pieces(bench, shape, width, context):
            if only in piece.name:
                _measure(bench, record, piece, roofline)
    for tokens in (48,) if bench.rehearsed else (1024, 8192, 16384):
        record.title(f"attention of a prompt of {tokens} tokens")
        for piece in _prefill_attention(bench, shape, tokens):
            if only in piece.name:
                _measure(bench, record, piece, roofline)
    record.title("ops of recurrent layers")
    for call in recurrent_calls(bench):
        cost = call.op.cost(call.inputs)
        piece = Piece(call.name, call.run, cost.moved_bytes, cost.operations)
        if only in piece.name:
            _measure(bench, record, piece, roofline)


def _measure(bench: Bench, record: Record, piece: Piece, roofline: Roofline) -> None:
    try:
        taken = bench.seconds(piece.call)
    except Exception as error:  # a broken kernel must not hide the other results
        record.line(piece.name, failed=f"{type(error).__name__}: {str(error)[:200]}")
        bench.sync()  # raises if the device is lost, since nothing could run after that
        return
    floor = roofline.floor_s(piece.moved_bytes, piece.operations)
    record.line(
        piece.name,
        us=taken * 1e6,
        floor_us=floor * 1e6,
        of_floor=floor / taken,
        gb_s=piece.moved_bytes / taken / 1e9,
    )


def pieces(bench: Bench, shape: Shape, tokens: int, context: int) -> Iterator[Piece]:
    """Yield all ops of a decode step of `tokens` rows."""
    ops = bench.ops
    item = torch.empty(0, dtype=bench.dtype).element_size()
    x = _random(bench, tokens, shape.width)
    wide = _random(bench, tokens, 2 * shape.ff)
    weight = torch.ones(shape.width, device=bench.device)
    size = tokens * shape.width * item
    yield Piece("rms_norm", lambda: ops.rms_norm(x, weight, 1e-6), 2 * size)
    yield Piece("add_rms_norm", lambda: ops.add_rms_norm(x, x, weight, 1e-6), 4 * size)
    yield Piece("silu_mul", lambda: ops.silu_mul(wide), 3 * tokens * shape.ff * item)
    yield from _products(bench, shape, tokens)
    yield from _float8_products(bench, shape, tokens)
    yield from _attention(bench, shape, tokens, context)
    yield from _sampling(bench, shape, tokens)


def _products(bench: Bench, shape: Shape, tokens: int) -> Iterator[Piece]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    products = {
        "qkv": (q + 2 * kv, shape.width),
        "output": (shape.width, q),
        "gate-up": (2 * shape.ff, shape.width),
        "down": (shape.width, shape.ff),
        "head": (shape.vocab, shape.width),
    }
    for name, (rows, width) in products.items():
        packed = packed_weight(bench, rows, width, head=name == "head")
        x = _random(bench, tokens, width)
        yield Piece(
            f"linear {name} {rows}x{width}",
            lambda x=x, packed=packed: bench.ops.linear(x, packed),  # type: ignore[misc]
            2 * rows * width + x.element_size() * tokens * (rows + width),
            2 * tokens * rows * width,
        )


def _float8_products(bench: Bench, shape: Shape, tokens: int) -> Iterator[Piece]:
    """Yield the layers' products with float8 weights; the floor counts their bytes and the bfloat16
    operations."""
    for rows, width in layer_sizes(shape):
        packed = packed_float8(bench, rows, width)
        x = _random(bench, tokens, width)
        yield Piece(
            f"linear fp8 {rows}x{width}",
            lambda x=x, packed=packed: bench.ops.linear(x, packed),  # type: ignore[misc]
            rows * width + x.element_size() * tokens * (rows + width),
            2 * tokens * rows * width,
        )


def layer_sizes(shape: Shape) -> list[tuple[int, int]]:
    """Return rows and width of a layer's four products."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        (q + 2 * kv, shape.width),
        (shape.width, q),
        (2 * shape.ff, shape.width),
        (shape.width, shape.ff),
    ]


def packed_float8(bench: Bench, rows: int, width: int) -> Any:
    """Make the packed float8 weights of a random product, with one scale per tile of 128 x 128."""
    values = torch.randn(rows, width, device=bench.device) / width**0.5
    return pack_float8(bench, *float8_tiles(values))


def pack_float8(bench: Bench, codes: torch.Tensor, scale: torch.Tensor) -> Any:
    """Pack codes [N, K] and scales of tiles of 128 x 128 as a model's are."""
    held = codes.view(torch.uint8).cpu().numpy()
    return bench.ops.pack_linear(Linear((Float8(held, scale.cpu().numpy(), (128, 128)),)))


def packed_weight(bench: Bench, rows: int, width: int, *, head: bool = False) -> Any:
    """Make the weights of a random product, packed as a model's are."""
    return pack_dense(bench, random_weight(bench, rows, width), head=head)


def random_weight(bench: Bench, rows: int, width: int) -> torch.Tensor:
    """Make random weights [N, K] in bfloat16 on the device."""
    values = torch.randn(rows, width, dtype=torch.bfloat16, device=bench.device)
    return values.div_(width**0.5)


def pack_dense(bench: Bench, weight: torch.Tensor, *, head: bool = False) -> Any:
    """Pack weights [N, K] in bfloat16 as a model's are."""
    bits = weight.cpu().view(torch.int16).numpy().view("uint16")
    linear = Linear((Dense(bits, "bf16"),))
    return bench.ops.pack_head(linear) if head else bench.ops.pack_linear(linear)


def _attention(bench: Bench, shape: Shape, tokens: int, context: int) -> Iterator[Piece]:
    ops, item = bench.ops, torch.empty(0, dtype=bench.dtype).element_size()
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    inputs, cache = step_of(bench, shape, [(context - 1, 1)] * tokens)
    inputs = planned(bench, inputs, heads)
    q = _random(bench, tokens, shape.heads * shape.head_dim)
    qkv = _random(bench, tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    rope = torch.rand(context, shape.head_dim, device=bench.device)
    ones = torch.ones(shape.head_dim, device=bench.device)
    norm = HeadNorm(ones, ones.clone(), 1e-6)
    turned = item * (2 * qkv.numel())
    yield Piece(
        "rope_cache",
        lambda: ops.rope_cache(qkv, rope, inputs, cache, heads, norm),
        turned,
    )
    cached = 2 * tokens * context * shape.kv_heads * shape.head_dim * item
    yield Piece(
        f"attention {tokens} x {context}",
        lambda: ops.attention(q, inputs, cache, heads, shape.head_dim**-0.5, 0),
        cached + 2 * item * q.numel(),
    )


def planned(
    bench: Bench, inputs: StepInputs[torch.Tensor], heads: tuple[int, int, int]
) -> StepInputs[torch.Tensor]:
    """Plan the attention of a step of single tokens, as a runtime does once for all layers."""
    if bench.device == "cpu":
        return inputs
    from penstock.kernels.triton.paged_attention.decode_work import AttentionWork, most_units

    rows, width = inputs.block_tables.shape
    work = AttentionWork.allocate(rows, most_units(rows, width * BLOCK), heads, 0, bench.device)
    work.plan(inputs)
    return replace(inputs, work={(heads, 0): work})


def _prefill_attention(bench: Bench, shape: Shape, tokens: int) -> Iterator[Piece]:
    """Yield prefill attention by the serving backend, and by Triton if that is another."""
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    inputs, cache = step_of(bench, shape, [(0, tokens)])
    q = _random(bench, tokens, shape.heads * shape.head_dim)
    operations = 2 * tokens * tokens * shape.heads * shape.head_dim  # half of the square is seen
    serving = bench.ops.registry["attention"]
    compared = [serving]
    if serving.name == "cuda":
        compared.append(ATTENTION.implementations["triton"])
    for each in compared:
        yield Piece(
            f"attention prompt {tokens} {each.name}",
            lambda call=each.call: call(  # type: ignore[misc]
                q, inputs, cache, heads, shape.head_dim**-0.5, 0
            ),
            4 * q.numel() * q.element_size(),
            operations,
        )


def _sampling(bench: Bench, shape: Shape, rows: int) -> Iterator[Piece]:
    logits = 3 * torch.randn(rows, shape.vocab, device=bench.device)
    settings = {"greedy": (0.0, 0, 1.0), "tempered": (1.0, 0, 1.0), "narrow": (0.8, 40, 0.9)}
    for name, (temperature, top_k, top_p) in settings.items():
        rows_drawn = sampling_rows(bench, rows, temperature, top_k, top_p)
        yield Piece(
            f"sample {name} {rows}x{shape.vocab}",
            lambda r=rows_drawn: bench.ops.sample(logits, r),  # type: ignore[misc]
            4 * logits.numel(),
        )


def sampling_rows(
    bench: Bench, rows: int, temperature: float, top_k: int, top_p: float
) -> SamplingRows:
    """Make sampling columns on the device, as for a step."""

    def column(value: float, dtype: torch.dtype) -> Any:
        return torch.full((rows,), value, dtype=dtype, device=bench.device)

    def numbered() -> Any:
        return torch.arange(rows, device=bench.device)

    return SamplingRows(
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(0.0, torch.float32),
        numbered(),
        numbered(),
    )


def step_of(bench: Bench, shape: Shape, chunks: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Make the inputs and a filled cache of a step of chunks (tokens before, tokens now)."""
    blocks = [-(-(before + now) // BLOCK) for before, now in chunks]
    order = torch.randperm(sum(blocks))
    tables = torch.zeros(len(chunks), max(blocks), dtype=torch.int32)
    positions, slots, taken = [], [], 0
    for row, (before, now) in enumerate(chunks):
        own = order[taken : taken + blocks[row]].int()
        taken += blocks[row]
        tables[row, : blocks[row]] = own
        place = torch.arange(before, before + now, dtype=torch.int32)
        positions.append(place)
        slots.append(own[(place // BLOCK).long()] * BLOCK + place % BLOCK)
    lengths = torch.tensor([now for _, now in chunks], dtype=torch.int32)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    contexts = torch.tensor([before + now for before, now in chunks], dtype=torch.int32)
    inputs = StepInputs(
        tokens=torch.zeros(int(lengths.sum()), dtype=torch.int32).to(bench.device),
        positions=torch.cat(positions).to(bench.device),
        slots=torch.cat(slots).to(bench.device),
        query_starts=starts.to(bench.device),
        context_lens=contexts.to(bench.device),
        block_tables=tables.to(bench.device),
        sample_rows=(starts[1:] - 1).to(bench.device),
    )
    extents = CacheExtents(1, sum(blocks) + 1, shape.kv_heads, BLOCK, shape.head_dim)
    (cache,) = allocate_caches(extents, bench.dtype, bench.device)
    for part in (cache.keys, cache.values):
        part.copy_(torch.randn(part.shape, device=bench.device).to(bench.dtype))
    return inputs, cache


def _random(bench: Bench, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=bench.dtype, device=bench.device)
