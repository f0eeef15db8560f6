"""Pinned memory has exactly the requested size and is released again."""

from __future__ import annotations

import pytest
import torch

from penstock.base.errors import ModelError
from penstock.models.decoder.mixer import CacheSize
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.gpu.copy_stream import CopyStream
from penstock.runtime.gpu.cpu_kv_cache import CpuKvCache
from penstock.runtime.gpu.kv_pools import KvPools
from penstock.runtime.gpu.pinned_memory import PinnedMemory

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
OUT_OF_MEMORY = 2


class Driver:
    """Replaces `torch.cuda.cudart()`: records registrations and returns a set status."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.answer = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags == 0 and address not in self.registered
        if not self.answer:
            self.registered[address] = size
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, status: int) -> str:
        return {OUT_OF_MEMORY: "out of memory"}[status]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    return driver


def test_exactly_the_requested_bytes_are_pinned(driver: Driver) -> None:
    memory = PinnedMemory((5, 3, 1001), torch.int32, CUDA)
    assert memory.data.shape == (5, 3, 1001) and memory.data.dtype == torch.int32
    assert driver.registered == {memory.data.data_ptr(): 4 * 5 * 3 * 1001}


def test_closing_unpins_it_once(driver: Driver) -> None:
    memory = PinnedMemory((8,), torch.int32, CUDA)
    memory.close()
    assert driver.registered == {}
    memory.close()


def test_memory_that_is_not_closed_is_unpinned_when_collected(driver: Driver) -> None:
    memory = PinnedMemory((8,), torch.int32, CUDA)
    assert driver.registered
    del memory
    assert driver.registered == {}


def test_memory_that_cannot_be_pinned_is_refused_with_its_size(driver: Driver) -> None:
    driver.answer = OUT_OF_MEMORY
    with pytest.raises(
        ModelError, match=r"3 MiB .* cannot be pinned: out of memory; .*cpu_kv_cache"
    ):
        PinnedMemory((3 << 18,), torch.int32, CUDA)
    assert driver.registered == {}


def test_nothing_is_pinned_for_a_cpu(driver: Driver) -> None:
    PinnedMemory((8,), torch.int32, CPU)
    assert driver.registered == {}


def test_a_cache_pins_exactly_its_blocks(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (CacheSize(2, 24, 24),) * 3 + (None, CacheSize(1, 40, 32, latent=True))
    pools = KvPools(CacheShape(4, 16, sizes, 2, shares_latents=True), torch.bfloat16, "cpu")
    there: list[PinnedMemory] = []

    def on_a_gpu(shape: tuple[int, ...], dtype: torch.dtype, _: torch.device) -> PinnedMemory:
        there.append(PinnedMemory(shape, dtype, CUDA))
        return there[-1]

    monkeypatch.setattr("penstock.runtime.gpu.cpu_kv_cache.PinnedMemory", on_a_gpu)
    cache = CpuKvCache(pools.blocks, 5, 2, CopyStream(CPU, None))
    assert list(driver.registered.values()) == [5 * pools.size_bytes // 4]
    cache.close()
    assert driver.registered == {}
