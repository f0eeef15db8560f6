"""Messages between ranks arrive unchanged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.adapters.adapter import Adapter, Factors
from penstock.config import StepSizes
from penstock.dialog import Sampling
from penstock.models.decoder.mixer import CacheSize
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.gpu.cuda_graphs import StepForm
from penstock.runtime.gpu.memory import DeviceMemoryPlan
from penstock.runtime.ranks.messages import (
    Channel,
    Collect,
    LoadShard,
    PackAdapter,
    PackAnswer,
    SampledOnCpu,
    Step,
    ToPacker,
    ToRank,
    Warm,
    receive_adapter,
    send_adapter,
)
from penstock.scheduler.types import Admit, AppendBlocks, Chunk, CopyBlock, StepPlan

PLAN = StepPlan(
    7,
    (1,),
    (
        Admit(
            2,
            tuple(range(70_000)),  # more than a socket's buffer
            5,
            Sampling(temperature=0.5, logit_bias={3: -100.0}, dry_multiplier=1.0),
            2**64 - 1,
            3,
        ),
    ),
    (AppendBlocks(2, (9, 8)),),
    (Chunk(2, 0, 16, True, draft_tokens=(4, 5)),),
    restores=(CopyBlock(1, 2),),
    awaits=6,
)
MEMORY = DeviceMemoryPlan(
    *(1, CacheShape(1, 2, (CacheSize(3, 4, 5), None), 6), 1, 2, 3, 4, 5, 6, StepSizes(7, 8)),
    cpu_blocks=3,
    devices=2,
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel[PackAnswer], Channel[Any]]]:
    one, other = socket.socketpair()
    ends = Channel[PackAnswer](one, PackAnswer), Channel[Any](other, ToRank | ToPacker)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize(
    "message",
    [
        LoadShard(MEMORY),
        Warm((1, 4), StepForm(True, True)),
        Step(PLAN, True),
        SampledOnCpu(((2, (5, 6)),)),
    ],
)
def test_messages_arrive_whole(ends: tuple[Any, Any], message: Any) -> None:
    sender = threading.Thread(target=ends[0].send, args=(message,))
    sender.start()
    assert ends[1].receive() == message
    sender.join()


def test_an_adapter_shard_arrives_bit_for_bit(ends: tuple[Any, Any]) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((4, 16)).astype(np.float32)[:, 3:11]  # not contiguous
    b = random.standard_normal((6, 4)).astype(np.float32)
    sent = Adapter("name", 4, 100, ({"q": Factors(a, b)}, {}, {"o": Factors(b, a)}))
    send_adapter(ends[0], 5, sent)
    head = ends[1].receive()
    assert isinstance(head, PackAdapter) and head.ticket == 5
    found = receive_adapter(ends[1], head)
    assert found is not None
    assert (found.revision, found.rank, found.size_bytes) == ("name", 4, 100)
    for layer, expected in zip(found.layers, sent.layers, strict=True):
        assert list(layer) == list(expected)
        for name, factors in layer.items():
            assert np.array_equal(factors.a, expected[name].a)
            assert np.array_equal(factors.b, expected[name].b)


def test_a_receiver_gets_none_when_the_other_end_is_closed(ends: tuple[Any, Any]) -> None:
    ends[0].send(Collect())
    ends[0].close()
    with pytest.raises(OSError):
        ends[0].send(Collect())
    assert ends[1].receive() == Collect()
    assert ends[1].receive() is None


def test_half_a_message_is_none(ends: tuple[Any, Any]) -> None:
    ends[0].send_frame(b"\x05\x00\x00\x00ab")
    ends[0].close()
    assert ends[1].receive() is None
