"""A peer is warmed up before it is measured, as our server is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from bench.device.machine import Bench
from bench.device.peers import _batched
from bench.device.result_log import Record
from penstock.kernels.reference import ReferenceOps

PROMPTS = [[3, 4], [5, 6]]


class Peer:
    """A transformers model: a batch keeps its manager if `persistent_manager` is set."""

    def __init__(self, lost: int = 0) -> None:
        self.managers = 0
        self.found: list[bool] = []
        self._kept = False
        self._lost = lost

    def generate_batch(self, prompts: list[list[int]], **options: Any) -> dict[str, Any]:
        assert prompts == PROMPTS
        asked = options["continuous_batching_config"]
        assert not asked.allow_block_sharing
        assert asked.num_blocks == 16, "a rehearsal takes no share of the memory"
        self.found.append(self._kept)
        self.managers += not self._kept
        self._kept = options.get("persistent_manager", False)
        answered = prompts[self._lost :]
        return {
            str(index): SimpleNamespace(generated_tokens=[1]) for index, _ in enumerate(answered)
        }

    def destroy_cached_continuous_batching_manager(self) -> None:
        self._kept = False


BENCH = Bench("cpu", torch.float32, ReferenceOps(), rehearsed=True)


def test_the_timed_batch_reuses_the_manager_of_its_warm_up() -> None:
    peer = Peer()
    for _ in range(2):
        _batched(BENCH, Record("peers", None), peer, None, PROMPTS, 1)
    assert peer.found == [False, True] * 2
    assert peer.managers == 2


def test_an_incomplete_batch_gives_no_figure() -> None:
    with pytest.raises(AssertionError, match="1 of 2 prompts were answered"):
        _batched(BENCH, Record("peers", None), Peer(lost=1), None, PROMPTS, 1)
