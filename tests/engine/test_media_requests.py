"""Requests with media in an engine: encoding beside other requests, aborts, faults, refusals, and
the way over the socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from media_engine import (
    Answer,
    bits,
    core_over,
    image,
    media_request,
    poison,
    run,
    start_with_tower,
    words,
)

from penstock.base.errors import ContextLengthExceeded, InvalidRequest, ModelError
from penstock.config import EngineSettings
from penstock.engine.core import EngineCore
from penstock.engine.ipc import messages
from penstock.engine.ipc.client import EngineClient
from penstock.engine.ipc.server import EngineServer
from penstock.engine.local import LocalEngine
from penstock.engine.types import TokenDelta, TokenRequest
from penstock.runtime import CpuRuntime
from penstock.scheduler import StepResult
from tests.support.checkpoints.small_llama import CONTEXT, WIDTH
from tests.support.noise_towers import NoiseTower

HEAD, TAIL = words(6, 1), words(4, 2)


@pytest.fixture(scope="module")
def tower() -> NoiseTower:
    return NoiseTower(WIDTH)


@pytest.fixture(scope="module")
def runtime(tower: NoiseTower, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRuntime]:
    started = start_with_tower(tmp_path_factory.mktemp("model") / "small-llama", tower)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _fresh(tower: NoiseTower, runtime: CpuRuntime) -> None:
    tower.pieces.clear()
    tower.closed.clear()
    tower.faults.clear()
    poison(runtime)


def is_idle(core: EngineCore) -> bool:
    """Return whether an engine holds nothing for a request."""
    gauges, queue = core.gauges(), core._media
    assert queue is not None
    waits = gauges.sequences_running + gauges.sequences_waiting + gauges.kv_cache_blocks_used
    return not (waits or core.has_work or queue.cache.held_bytes or core._admissions._pending)


class Clock:
    """A clock that a test sets: each piece of a tower lasts `piece_s`, and `steps_s` is added."""

    def __init__(self, tower: NoiseTower, piece_s: float) -> None:
        self._tower, self._piece_s = tower, piece_s
        self.steps_s = 0.0

    def __call__(self) -> float:
        return len(self._tower.pieces) * self._piece_s + self.steps_s


def test_a_long_encoding_holds_up_each_step_of_others_by_one_piece(
    runtime: CpuRuntime, tower: NoiseTower
) -> None:
    core = core_over(runtime, clock=Clock(tower, piece_s=1.0))
    core.submit(media_request("text", HEAD, max_tokens=30))
    core.step()
    core.submit(media_request("image", HEAD, image("long", pieces=20), TAIL))
    progress = []
    while len(tower.pieces) < 20:
        before = len(tower.pieces)
        outputs = core.step()
        progress.append((len(tower.pieces) - before, sum(len(o.tokens) for o in outputs)))
    assert progress == [(1, 1)] * 19 + [(1, 2)]


def test_encoding_beside_a_stream_delays_it_less_than_a_step(
    runtime: CpuRuntime, tower: NoiseTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 6 s leaves time for 5 pieces of 1 s, and 3 of them are enough at a time."""
    clock, collect = Clock(tower, piece_s=1.0), runtime.collect

    def slow_collect() -> StepResult:
        clock.steps_s += 6.0
        return collect()

    monkeypatch.setattr(runtime, "collect", slow_collect)
    core = core_over(runtime, clock=clock)
    core.submit(media_request("text", HEAD, max_tokens=30))
    core.step()
    core.step()
    core.submit(media_request("image", HEAD, image("long", pieces=20), TAIL))
    counts = []
    for _ in range(3):
        before = len(tower.pieces)
        core.step()
        counts.append(len(tower.pieces) - before)
    assert counts == [3, 3, 3]
    core.abort("image")  # else the encoding closes when the core is collected, in a later test


def test_requests_without_media_pass_those_that_wait(
    runtime: CpuRuntime, tower: NoiseTower
) -> None:
    core = core_over(runtime, clock=Clock(tower, piece_s=1.0))
    core.submit(media_request("image", HEAD, image("long", pieces=500), TAIL))
    core.submit(media_request("text", HEAD, max_tokens=3))
    outputs = []
    while not any(output.finish for output in outputs):
        outputs += core.step()
    assert {output.id for output in outputs} == {"text"}
    core.abort("image")
    assert is_idle(core)


def test_an_abort_while_encoding_frees_everything(runtime: CpuRuntime, tower: NoiseTower) -> None:
    core = core_over(runtime)
    core.submit(media_request("r", HEAD, image("a"), image("b", pieces=5), TAIL))
    for _ in range(3):
        core.step()
    core.abort("r")
    assert tower.closed == ["b"] and is_idle(core)
    assert core.gauges().completed_abort == 1


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_at_any_step_frees_everything(
    runtime: CpuRuntime, tower: NoiseTower, steps: int
) -> None:
    core = core_over(runtime)
    for id in ("one", "two"):
        core.submit(media_request(id, HEAD, image("a", pieces=2), TAIL, max_tokens=40))
    for _ in range(steps):
        core.step()
    for id in ("one", "two"):
        core.abort(id)
    assert is_idle(core)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "the image could not be encoded"),
        ("nan", "the model gave no finite numbers for this image"),
        ("short", "the image gave 11 embeddings for 12 tokens"),
    ],
)
def test_a_fault_of_the_tower_ends_only_its_request(
    runtime: CpuRuntime, tower: NoiseTower, fault: str, message: str
) -> None:
    tower.faults["bad"] = fault  # type: ignore[assignment]
    core = core_over(runtime)
    answers = run(
        core,
        [
            media_request("bad", HEAD, image("bad"), TAIL),
            media_request("good", HEAD, image("good"), TAIL),
            media_request("text", HEAD),
        ],
    )
    assert (answers["bad"].finish, answers["bad"].error) == ("error", message)
    assert not answers["bad"].tokens
    assert {answers[id].finish for id in ("good", "text")} == {"length"}
    assert is_idle(core) and core.gauges().completed_error == 1


def test_choices_of_one_prompt_encode_and_compute_it_once(
    runtime: CpuRuntime, tower: NoiseTower
) -> None:
    core = core_over(runtime)
    one = media_request("0", HEAD, image("a", pieces=3, rows=30), TAIL, group="g")
    choices = [msgspec.structs.replace(one, id=str(n), seed=n) for n in range(4)]
    answers = run(core, choices)
    assert tower.pieces == ["a"] * 3
    assert sorted(answer.cached_tokens for answer in answers.values()) == [0, 32, 32, 32]
    gauges = core.gauges()
    assert (gauges.encoder_cache_hits, gauges.encoder_cache_misses) == (3, 1)
    assert is_idle(core) and gauges.encoder_cache_bytes == 30 * 4 * WIDTH


def _refusals() -> dict[str, tuple[TokenRequest, str]]:
    good = media_request("r", HEAD, image("a"), TAIL)
    (one,) = good.media

    def changed(**fields: object) -> TokenRequest:
        return msgspec.structs.replace(good, media=(msgspec.structs.replace(one, **fields),))

    positions = np.tile(np.arange(len(good.token_ids), dtype=np.int32), (3, 1))
    return {
        "kind": (
            media_request("r", HEAD, image("a", kind="audio")),
            "media.0. is of kind audio; this model reads image",
        ),
        "overlap": (
            msgspec.structs.replace(good, media=(one, one)),
            "media.1. starts at token 6 and has 14 tokens; it must start at token 20 or later",
        ),
        "end": (changed(start=12), "the media end at token 26, after the 24 tokens of the prompt"),
        "no tokens": (changed(length=0, runs=()), "has 0 tokens; it must"),
        "no runs": (changed(runs=()), "runs end at token 0"),
        "long run": (changed(runs=((3, 12),)), "runs end at token 15; they must end after 0 and"),
        "order": (changed(runs=((3, 2), (1, 1))), "has 1 tokens from 1 on, after 5"),
        "positions": (
            msgspec.structs.replace(good, rope_positions=b"1234"),
            "rope_positions has 4 bytes; 24 tokens need 288",
        ),
        "negative": (
            msgspec.structs.replace(good, rope_positions=(positions - 1).tobytes()),
            "rope_positions has -1",
        ),
        "size": (
            media_request("r", image("a", rows=100)),
            r"need 1 MiB when encoded; the limit is 0 MiB \(encoder_cache_mb\)",
        ),
        "whole": (
            media_request("r", image("a", rows=60, margin=0, whole=True)),
            r"an image has 60 tokens.*at most 50 \(max_num_batched_tokens\)",
        ),
    }


@pytest.mark.parametrize("name", _refusals())
def test_impossible_media_are_refused_by_name(runtime: CpuRuntime, name: str) -> None:
    request, message = _refusals()[name]
    core = core_over(runtime, 90 * 4 * WIDTH, max_num_batched_tokens=50)
    with pytest.raises(InvalidRequest, match=message):
        core.submit(request)
    assert is_idle(core)


def test_the_runs_of_a_whole_item_may_be_in_different_steps(runtime: CpuRuntime) -> None:
    request = media_request("r", HEAD, image("a", rows=70, margin=0, whole=True), TAIL)
    (item,) = request.media
    crops = msgspec.structs.replace(item, runs=((0, 30), (40, 30)))
    request = msgspec.structs.replace(request, media=(crops,))
    at_once = run(core_over(runtime), [request])
    poison(runtime)
    in_steps = run(core_over(runtime, max_num_batched_tokens=40), [request])
    assert bits(in_steps) == bits(at_once)


def test_a_model_without_towers_refuses_media(tmp_path: Path) -> None:
    runtime = start_with_tower(tmp_path / "small-llama", NoiseTower(WIDTH, kinds=frozenset()))
    core = core_over(runtime)
    core.info = msgspec.structs.replace(core.info, media_kinds=())
    with pytest.raises(InvalidRequest, match="this model reads only text"):
        core.submit(media_request("r", HEAD, image("a")))
    runtime.close()


def test_positions_past_the_context_are_refused_and_shorten_the_answer(
    runtime: CpuRuntime,
) -> None:
    core = core_over(runtime)
    request = media_request("r", HEAD, image("a"), TAIL, max_tokens=20)
    positions = np.tile(np.arange(len(request.token_ids), dtype=np.int32), (3, 1))

    def at(last: int, id: str) -> TokenRequest:
        positions[:, 10:] = np.arange(last - 13, last + 1)
        return msgspec.structs.replace(request, id=id, rope_positions=positions.tobytes())

    with pytest.raises(ContextLengthExceeded, match="positions up to 159; the context has 160"):
        core.submit(at(CONTEXT - 1, "far"))
    answers = run(core, [at(CONTEXT - 8, "near")])
    assert len(answers["near"].tokens) == 7 and answers["near"].finish == "length"


def test_the_memory_formula_counts_towers_and_the_encoder_cache(
    tower: NoiseTower, runtime: CpuRuntime
) -> None:
    assert " + 3 towers + 512 encoder cache + 6 media buffers + " in runtime.report
    assert runtime.info.weight_bytes > 3 << 20
    core = EngineCore.for_runtime(runtime, EngineSettings(threads=2))
    assert core.info.media_kinds == ("image",)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers_of_its_media(
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelError, match=r"3 towers \+ 512 encoder cache.*smaller encoder_cache"):
        start_with_tower(tmp_path / "m", NoiseTower(WIDTH), available=300 << 20)


async def _answers(engine: LocalEngine | EngineClient, requests: list[TokenRequest]) -> object:
    answers = {request.id: Answer() for request in requests}
    stream = engine.generate(*requests)
    async for output in stream:
        answers[output.id].tokens += [
            TokenDelta(*msgspec.structs.astuple(t)) for t in output.tokens
        ]
        answers[output.id].finish = output.finish
    await stream.aclose()
    return bits(answers)


@asynccontextmanager
async def serving(core: EngineCore, path: Path) -> AsyncIterator[EngineClient]:
    """Yield a client of `core`, which runs in another thread behind a socket."""
    server = EngineServer(core, str(path))
    thread = threading.Thread(target=server.run, name="engine")
    thread.start()
    try:
        client = EngineClient(str(path))
        await client.wait_ready()
        yield client
        await client.close()
    finally:
        server.stop()
        await asyncio.to_thread(thread.join)


REQUESTS = [
    media_request("a", HEAD, image("a" * 5_000_000, pieces=3), TAIL),
    media_request("b", HEAD, image("b", pieces=3), TAIL),
]


async def test_requests_with_media_cross_the_socket(runtime: CpuRuntime, tmp_path: Path) -> None:
    expected = bits(run(core_over(runtime), REQUESTS))
    core = core_over(runtime)
    async with serving(core, tmp_path / "s") as client:
        assert client.info.media_kinds == ("image",)
        assert await _answers(client, REQUESTS) == expected
        gauges = await client.gauges()
        assert gauges.media_items_encoded == 2 and gauges.encoder_cache_bytes == 24 * 4 * WIDTH
    assert is_idle(core)


async def test_media_of_several_choices_cross_the_socket_once(
    runtime: CpuRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = REQUESTS[0]
    choices = [msgspec.structs.replace(one, id=id) for id in "acd"] + REQUESTS[1:]
    expected = bits(run(core_over(runtime), choices))
    sizes: list[int] = []
    write = EngineClient._write

    def counted(client: EngineClient, encode: Callable[[], bytes]) -> None:
        def noted() -> bytes:
            data = encode()
            sizes.append(len(data))
            return data

        write(client, noted)

    monkeypatch.setattr(EngineClient, "_write", counted)
    async with serving(core_over(runtime), tmp_path / "s") as client:
        assert await _answers(client, choices) == expected
        assert sum(sizes) < 1.1 * len(one.media[0].media.data)
        other = msgspec.structs.replace(one, id="again")
        assert await _answers(client, [other]) == {"again": expected["a"]}


async def test_a_request_too_large_for_the_socket_fails_alone(
    runtime: CpuRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 4_000_000)
    async with serving(core_over(runtime), tmp_path / "s") as client:
        open_request = client.generate(media_request("open", HEAD, max_tokens=50))
        await open_request.admitted()
        with pytest.raises(InvalidRequest, match="the limit is 4,000,000"):
            await _answers(client, REQUESTS[:1])
        await _answers(client, REQUESTS[1:])
        assert [output async for output in open_request][-1].finish == "length"


async def test_requests_with_media_run_in_a_thread(tmp_path: Path) -> None:
    runtime = start_with_tower(tmp_path / "small-llama", NoiseTower(WIDTH))
    expected = bits(run(core_over(runtime), REQUESTS))
    engine = LocalEngine(core_over(runtime))
    assert await _answers(engine, REQUESTS) == expected
    stream = engine.generate(media_request("c", HEAD, image("c", pieces=100_000_000), TAIL))
    await stream.admitted()
    await stream.aclose()
    assert await _answers(engine, REQUESTS) == expected
    await engine.close()
