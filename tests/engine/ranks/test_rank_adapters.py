"""Adapter shards that are never installed: no rank keeps them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lora_base_models import draw_adapters
from rank_threads import InThread
from tp_runtimes import start_single

from penstock.adapters.adapter import Adapter
from penstock.runtime.ranks.follower import Follower
from penstock.runtime.ranks.messages import Channel, PackAnswer, ToPacker, ToRank
from penstock.runtime.ranks.runtime import TensorParallelAdapters
from tests.support.checkpoints.small_llama import write_small_llama


@dataclass
class World:
    adapters: TensorParallelAdapters
    follower: Follower
    processes: InThread
    thread: threading.Thread
    adapter: Adapter

    def kept(self) -> list[int]:
        """Return the tickets that the other rank has after all messages."""
        self.processes.steps.close()
        self.thread.join()
        return list(self.follower._packed)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    base = write_small_llama(tmp_path / "small-llama")
    runtimes = [start_single(base), start_single(base)]
    (steps, own_steps), (adapters, own_adapters) = socket.socketpair(), socket.socketpair()
    follower = Follower(
        runtimes[1], Channel(own_steps, ToRank), Channel(own_adapters, ToPacker), lambda x: x
    )
    thread = threading.Thread(target=follower.run)
    thread.start()
    processes = InThread(Channel(steps, Any), Channel(adapters, PackAnswer))
    own = runtimes[0].adapters
    assert own is not None
    leading = TensorParallelAdapters(own, processes, own.spec)  # type: ignore[arg-type]
    (adapter,) = draw_adapters(tmp_path, 1)
    yield World(leading, follower, processes, thread, adapter)
    processes.steps.close()
    thread.join()
    follower.close()
    processes.adapters.close()
    runtimes[0].close()


def test_an_installed_adapter_is_only_in_its_slot(world: World) -> None:
    packed = world.adapters.pack(world.adapter)
    assert list(world.follower._packed) == [packed.ticket]
    world.adapters.install(2, packed)
    del packed
    world.adapters.send_drops()
    assert world.kept() == []
    slots = world.follower._runtime._model.adapters.slots  # type: ignore[union-attr]
    assert [one is not None for one in slots.held][:4] == [False, False, True, False]  # type: ignore[attr-defined]


def test_an_adapter_that_is_not_installed_is_dropped(world: World) -> None:
    packed = world.adapters.pack(world.adapter)
    kept = world.adapters.pack(world.adapter)
    del packed
    world.adapters.send_drops()
    assert world.kept() == [kept.ticket]


def test_an_adapter_that_rank_0_cannot_pack_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(adapter: Adapter) -> None:
        raise MemoryError("pinned")

    monkeypatch.setattr(world.adapters._own, "pack", fail)
    with pytest.raises(MemoryError):
        world.adapters.pack(world.adapter)
    world.adapters.send_drops()
    assert world.kept() == []
