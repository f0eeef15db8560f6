"""An embedding engine: packing, fairness, limits, and both ways to reach it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import (
    ContextLengthExceeded,
    EngineFault,
    InvalidRequest,
    ModelError,
    Overloaded,
    ServiceError,
)
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.embedding_core import EmbeddingCore
from penstock.engine.ipc.client import EngineClient
from penstock.engine.ipc.server import EngineServer
from penstock.engine.load import load_core
from penstock.engine.local import LocalEngine
from penstock.engine.types import EmbedOutput, EmbedRequest, TokenRequest
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.reranker_checkpoints import save_reranker, small_reranker
from tests.support.checkpoints.small_llama import write_small_llama

SHORT, LONG = (2, 9, 3), tuple(range(2, 62))
TEXT = TokenRequest("t", (1, 2), Sampling(), 0, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a BERT of width 64 with a context of 80 tokens."""
    return save_sentence_folder(tmp_path_factory.mktemp("bert"), small_body("Bert"))


def core_of(folder: Path, **settings: Any) -> EmbeddingCore:
    core = load_core(
        EngineSettings(model=str(folder), threads=2, max_num_batched_tokens=80, **settings)
    )
    assert isinstance(core, EmbeddingCore)
    return core


def vectors_of(chunks: list[EmbedOutput]) -> np.ndarray:
    return np.frombuffer(b"".join(chunk.vectors for chunk in chunks), "<f4").reshape(-1, 64)


def run(core: EmbeddingCore, *requests: EmbedRequest) -> list[list[EmbedOutput]]:
    """Queue all requests and compute until none is left; return the chunks of each step."""
    for request in requests:
        core.embed(request)
    steps = []
    while core.has_work:
        steps.append(core.step())
    return steps


def test_engine_tells_the_memory_of_its_formula(folder: Path) -> None:
    core = core_of(folder)
    total_mib = float(core.report.rsplit("= ", 1)[1].removesuffix(" MiB").replace(",", ""))
    assert round(core.info.memory_bytes / 2**20) == round(total_mib)
    assert core.info.memory_bytes > core.info.weight_bytes > 0
    core.close()


@pytest.mark.parametrize("cache", ["int8", "f8e4m3"])
def test_an_8_bit_cache_is_refused_by_name(folder: Path, cache: str) -> None:
    with pytest.raises(ModelError, match=f"kv_cache_dtype is {cache}; for an embedding model"):
        core_of(folder, kv_cache_dtype=cache)


async def collect(stream: AsyncIterator[EmbedOutput]) -> np.ndarray:
    return vectors_of([chunk async for chunk in stream])


def test_vectors_come_in_order_and_are_those_of_each_alone(folder: Path) -> None:
    core = core_of(folder)
    sequences = (LONG, SHORT, LONG[:40], SHORT[:1], LONG[::-1])
    steps = run(core, EmbedRequest("a", sequences))
    assert len(steps) > 1, "they do not fit one step"
    together = vectors_of([chunk for step in steps for chunk in step])
    assert [chunk.finish for step in steps for chunk in step] == [None] * (len(steps) - 1) + [
        "stop"
    ]
    for row, sequence in enumerate(sequences):
        ((chunk,),) = run(core, EmbedRequest("b", (sequence,)))
        assert np.array_equal(vectors_of([chunk])[0], together[row])


def test_a_long_list_delays_no_short_one(folder: Path) -> None:
    core = core_of(folder)
    steps = run(core, EmbedRequest("list", (LONG,) * 6), EmbedRequest("one", (SHORT,)))
    ended = {chunk.id: index for index, step in enumerate(steps) for chunk in step if chunk.finish}
    assert ended == {"one": 0, "list": 5}


def test_a_step_never_exceeds_its_tokens_and_rows(folder: Path) -> None:
    core = core_of(folder, max_num_seqs=3)
    sizes = [len(step[0].vectors) // 256 for step in run(core, EmbedRequest("a", (SHORT,) * 8))]
    assert sizes == [3, 3, 2]
    sizes = [len(step[0].vectors) // 256 for step in run(core, EmbedRequest("a", (LONG[:30],) * 5))]
    assert sizes == [2, 2, 1]


def test_an_aborted_request_gives_nothing_more(folder: Path) -> None:
    core = core_of(folder)
    core.embed(EmbedRequest("a", (LONG,) * 4))
    core.embed(EmbedRequest("b", (LONG,) * 2))
    core.step()
    core.abort("a")
    core.abort("unknown")
    rest = [chunk.id for step in run(core) for chunk in step]
    assert rest == ["b", "b"]
    assert core.gauges().completed_abort == 1
    assert core.gauges().sequences_waiting == 0


def test_what_was_counted_once_stays_as_it_was(folder: Path) -> None:
    core = core_of(folder)
    before = core.gauges()
    run(core, EmbedRequest("a", (SHORT,)))
    assert (before.completed_stop, before.tokens_processed) == (0, 0)
    assert (core.gauges().completed_stop, core.gauges().tokens_processed) == (1, len(SHORT))


def test_a_full_queue_refuses_and_takes_again_once_it_is_shorter(folder: Path) -> None:
    core = core_of(folder, max_queue=4)
    core.embed(EmbedRequest("a", (LONG,) * 5))  # admitted: nothing was waiting
    with pytest.raises(Overloaded) as refusal:
        core.embed(EmbedRequest("b", (SHORT,)))
    assert refusal.value.retry_after_s
    core.step()
    core.step()
    core.embed(EmbedRequest("b", (SHORT,)))
    assert core.gauges().sequences_waiting == 4


@pytest.mark.parametrize(
    ("sequences", "error"),
    [
        ((), InvalidRequest),
        (((),), InvalidRequest),
        (((2, 64),), InvalidRequest),
        (((2, -1),), InvalidRequest),
        (((2,) * 81,), ContextLengthExceeded),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    folder: Path, sequences: Any, error: type[Exception]
) -> None:
    core = core_of(folder)
    with pytest.raises(error):
        core.embed(EmbedRequest("a", sequences))
    assert not core.has_work


def test_each_kind_of_engine_refuses_what_the_other_does(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="writes no text"):
        core_of(folder).submit(TEXT)
    writer = load_core(EngineSettings(model=str(write_small_llama(tmp_path)), threads=1))
    with pytest.raises(InvalidRequest, match="makes no embeddings"):
        writer.embed(EmbedRequest("a", (SHORT,)))
    writer.close()


def test_a_vector_that_is_not_finite_fails_its_request_alone(folder: Path, tmp_path: Path) -> None:
    model = small_body("Bert")
    model.embeddings.word_embeddings.weight.data[9] = float("nan")
    core = core_of(save_sentence_folder(tmp_path, model))
    steps = run(core, EmbedRequest("bad", (SHORT, LONG, LONG)), EmbedRequest("good", ((2, 3),)))
    ends = {chunk.id: chunk.finish for step in steps for chunk in step if chunk.finish}
    assert ends == {"bad": "error", "good": "stop"}
    assert core.gauges().completed_error == 1


@pytest.fixture
def reranker(tmp_path: Path) -> Path:
    return save_reranker(tmp_path / "reranker", small_reranker("Bert"))


def logits_of(chunks: list[EmbedOutput]) -> list[float]:
    return np.frombuffer(b"".join(chunk.vectors for chunk in chunks), "<f4").tolist()


def test_pairs_and_single_texts_share_a_step_and_keep_their_types(reranker: Path) -> None:
    core = core_of(reranker)
    pairs = EmbedRequest("pairs", (SHORT, LONG[:20]), second_starts=(2, 7))
    alone = [
        logits_of(run(core, EmbedRequest("a", (sequence,), second_starts=(start,)))[0])
        for sequence, start in zip(pairs.sequences, pairs.second_starts, strict=True)
    ]
    (single,) = run(core, EmbedRequest("single", (LONG[:20],)))
    (step,) = run(core, pairs, EmbedRequest("single", (LONG[:20],)))
    together = {chunk.id: logits_of([chunk]) for chunk in step}
    assert together == {"pairs": alone[0] + alone[1], "single": logits_of(single)}
    assert together["single"] != alone[1], "types make a difference"


async def test_where_second_texts_begin_goes_through_the_socket(
    reranker: Path, tmp_path: Path
) -> None:
    request = EmbedRequest("a", (SHORT, LONG), second_starts=(2, 7))
    expected = logits_of([chunk for step in run(core_of(reranker), request) for chunk in step])
    server = EngineServer(core_of(reranker), str(tmp_path / "socket"))
    thread = threading.Thread(target=server.run)
    thread.start()
    client = EngineClient(str(tmp_path / "socket"))
    try:
        assert (await client.wait_ready()).embedding_width == 1
        assert logits_of([chunk async for chunk in client.embed(request)]) == expected
    finally:
        server.stop()
        await asyncio.to_thread(thread.join)
        await client.close()


async def test_a_local_engine_embeds_and_refuses_text(folder: Path) -> None:
    engine = await LocalEngine.start(EngineSettings(model=str(folder), threads=2))
    try:
        assert engine.info.embedding_width == 64
        alone = [
            await collect(engine.embed(EmbedRequest(f"{i}", (s,))))
            for i, s in enumerate((SHORT, LONG))
        ]
        both = await collect(engine.embed(EmbedRequest("both", (SHORT, LONG))))
        assert np.array_equal(np.concatenate(alone), both)
        with pytest.raises(InvalidRequest):
            async for _ in engine.generate(TEXT):
                pass
    finally:
        await engine.close()


async def test_a_process_embeds_over_the_socket_until_the_engine_is_gone(
    folder: Path, tmp_path: Path
) -> None:
    core = core_of(folder)
    server = EngineServer(core, str(tmp_path / "socket"))
    thread = threading.Thread(target=server.run)
    thread.start()
    client = EngineClient(str(tmp_path / "socket"))
    try:
        info = await client.wait_ready()
        assert info.embedding_width == 64
        expected = vectors_of(run(core_of(folder), EmbedRequest("x", (SHORT, LONG)))[0])
        assert np.array_equal(
            await collect(client.embed(EmbedRequest("a", (SHORT, LONG)))), expected
        )
        with pytest.raises(ServiceError, match="writes no text"):
            async for _ in client.generate(TEXT):
                pass
        endless = EmbedRequest("b", (LONG,) * 100_000)
        reading = asyncio.ensure_future(collect(client.embed(endless)))
        while (await client.gauges()).sequences_waiting == 0:
            pass
        server.stop()
        with pytest.raises(EngineFault):
            await reading
    finally:
        server.stop()
        await asyncio.to_thread(thread.join)
        await client.close()


async def test_a_reader_that_leaves_ends_its_request(folder: Path, tmp_path: Path) -> None:
    server = EngineServer(core_of(folder), str(tmp_path / "socket"))
    thread = threading.Thread(target=server.run)
    thread.start()
    client = EngineClient(str(tmp_path / "socket"))
    try:
        await client.wait_ready()
        reading = asyncio.ensure_future(collect(client.embed(EmbedRequest("a", (LONG,) * 100_000))))
        while (await client.gauges()).sequences_waiting == 0:
            pass
        reading.cancel()
        await asyncio.wait([reading])
        gauges = await client.gauges()
        assert (gauges.completed_abort, gauges.sequences_waiting) == (1, 0)
    finally:
        server.stop()
        await asyncio.to_thread(thread.join)
        await client.close()
