"""LoRA adapters in a runtime: packs them for the kernels and stores them in adapter slots."""

from __future__ import annotations

from typing import Any, Final, Protocol

from penstock.adapters.adapter import Adapter, Factors
from penstock.config import EngineSettings
from penstock.kernels.lora_slots import (
    AdapterSlots,
    LinearFactors,
    LoraFactors,
    PackedAdapter,
    SlotSizes,
)
from penstock.kernels.ops_interface import Ops
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.lora_targets import linear_sizes, lora_blocks
from penstock.models.decoder.spec import DecoderSpec


class RuntimeAdapters(Protocol):
    """The adapter slots of a runtime. A row with adapter slot s computes with the adapter that was
    last installed in s.

    `capacity`: number of slots.
    `max_rank`: largest LoRA rank of an adapter.
    `max_bytes`: most memory of all installed adapters together.
    """

    @property
    def spec(self) -> DecoderSpec: ...
    @property
    def capacity(self) -> int: ...
    @property
    def max_rank(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """Pack an adapter for the kernels. May run in any thread, in parallel with steps."""

    def install(self, slot: int, packed: PackedAdapter) -> None:
        """Put a packed adapter into `slot`. Call this between steps, when no row of a later step
        uses the previous adapter of the slot."""

    def clear(self, slot: int) -> None:
        """Free the memory of the adapter in `slot`. Call this between steps."""


class SlotAdapters:
    """`RuntimeAdapters` that use the adapter slots of an `Ops` implementation."""

    def __init__(
        self, spec: DecoderSpec, sizes: SlotSizes, slots: AdapterSlots, max_bytes: int
    ) -> None:
        self.spec = spec
        self.capacity = sizes.capacity
        self.max_rank = sizes.max_rank
        self.max_bytes = max_bytes
        self.slots = slots

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """Pack an adapter for the kernels; see `RuntimeAdapters.pack`."""
        return self.slots.pack(factors_of(adapter, self.spec))

    def install(self, slot: int, packed: PackedAdapter) -> None:
        self.slots.install(slot, packed)

    def clear(self, slot: int) -> None:
        self.slots.clear(slot)


SLOTS_PER_ADAPTER: Final = 2
"""Slots per adapter: while an adapter is replaced, its old and its new revision are both in use. An
empty slot costs only a table entry."""


def slot_adapters(
    decoder: Decoder[Any], ops: Ops[Any], max_bytes: int, settings: EngineSettings
) -> SlotAdapters | None:
    """Return adapter slots for every linear layer of `decoder`, or None without LoRA settings.
    `max_bytes`: most memory of all installed adapters together."""
    lora = settings.lora
    if lora is None:
        return None
    spec = decoder.spec
    capacity = SLOTS_PER_ADAPTER * lora.max_adapters
    sizes = SlotSizes(capacity, lora.max_rank, linear_sizes(spec), decoder.adapter_storage_dtype)
    return SlotAdapters(spec, sizes, ops.adapter_slots(sizes), max_bytes)


def factors_of(adapter: Adapter, spec: DecoderSpec) -> list[LinearFactors]:
    """Return the LoRA factors of each linear layer in the order of `linear_sizes`."""

    def factors(one: Factors | None) -> LoraFactors | None:
        return None if one is None else LoraFactors(one.a, one.b)

    return [
        tuple(factors(layer.get(part)) for part in linear.parts)
        for layer, block in zip(adapter.layers, lora_blocks(spec), strict=True)
        for linear in block.linears.values()
    ]
