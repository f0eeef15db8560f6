"""Adapters behind a whole embedding engine: leases, residency, errors, and no leftovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings, LoraSettings
from penstock.engine.embedding_core import EmbeddingCore
from penstock.engine.load import load_core
from penstock.engine.local import LocalEngine
from penstock.engine.types import AdapterSource, EmbedOutput, EmbedRequest
from tests.support.checkpoints.embedding_checkpoints import (
    add_sentence_files,
    save_sentence_folder,
    small_body,
)
from tests.support.checkpoints.lora_adapters import have, load, write_adapter
from tests.support.checkpoints.small_llama import write_small_llama

LORA = LoraSettings(max_adapters=1, max_rank=8)  # two slots
NAMES = ("a", "b", "c")
SHORT, LONG = (2, 9, 3), tuple(range(2, 62))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(root / name, seed=seed, rank=3 + seed, size=0.5)
        for seed, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "small"
    return add_sentence_files(write_small_llama(folder), "lasttoken")


def core_of(model: Path, lora: LoraSettings | None = LORA) -> EmbeddingCore:
    core = load_core(
        EngineSettings(model=str(model), threads=2, max_num_batched_tokens=160, lora=lora)
    )
    assert isinstance(core, EmbeddingCore)
    return core


@pytest.fixture
def core(model: Path) -> Iterator[EmbeddingCore]:
    one = core_of(model)
    yield one
    assert all(state.active_leases == 0 for state in one.adapters())
    for state in one.adapters():
        one.retire_adapter(state.revision)
    deadline = time.monotonic() + 30
    while one.adapters():
        one.step()
        assert time.monotonic() < deadline
    one.close()


def revision(core: EmbeddingCore, *, resident: bool) -> str:
    return next(one.revision for one in core.adapters() if one.resident == resident)


def run(core: EmbeddingCore, *requests: EmbedRequest) -> dict[str, list[EmbedOutput]]:
    """Return the chunks of each request, in the order in which they finished."""
    for request in requests:
        core.embed(request)
    left = {request.id for request in requests}
    chunks: dict[str, list[EmbedOutput]] = {}
    deadline = time.monotonic() + 30
    while left:
        for chunk in core.step():
            chunks.setdefault(chunk.id, []).append(chunk)
            left -= {chunk.id} if chunk.finish else set()
        assert time.monotonic() < deadline
    return chunks


def vectors_of(chunks: list[EmbedOutput]) -> bytes:
    assert chunks[-1].finish == "stop", chunks[-1].error
    return b"".join(chunk.vectors for chunk in chunks)


def alone(core: EmbeddingCore, adapter: str = "") -> bytes:
    return vectors_of(run(core, EmbedRequest("alone", (LONG, SHORT), adapter))["alone"])


def test_requests_name_generations_and_unknown_ones_are_refused(
    core: EmbeddingCore, folders: dict[str, Path]
) -> None:
    have(core, folders, "a", "b")
    truth = {name: alone(core, name) for name in ("", "a", "b")}
    assert len(set(truth.values())) == 3
    mixed = run(core, *(EmbedRequest(f"<{name}>", (LONG, SHORT), name) for name in truth))
    assert {name: vectors_of(mixed[f"<{name}>"]) for name in truth} == truth
    with pytest.raises(InvalidRequest) as refused:
        core.embed(EmbedRequest("x", (SHORT,), "c"))
    assert (refused.value.code, refused.value.field) == ("adapter_not_found", "adapter")
    assert not core.has_work and core.gauges().sequences_waiting == 0


def test_one_step_computes_different_adapters_and_none(
    model: Path, folders: dict[str, Path]
) -> None:
    core = core_of(model, LoraSettings(max_adapters=4, max_rank=8))
    have(core, folders, *NAMES)
    assert all(state.resident for state in core.adapters())
    truth = {name: alone(core, name) for name in ("", *NAMES)}
    assert len(set(truth.values())) == 4
    for name in truth:
        core.embed(EmbedRequest(f"<{name}>", (SHORT,), name))
    chunks = core.step()
    assert [chunk.id for chunk in chunks] == [f"<{name}>" for name in truth]
    width = len(chunks[0].vectors)
    assert [chunk.vectors for chunk in chunks] == [vectors[width:] for vectors in truth.values()]
    core.close()


def test_more_adapters_than_slots_serve_requests_at_once(
    core: EmbeddingCore, folders: dict[str, Path]
) -> None:
    have(core, folders, *NAMES)
    truth = {name: alone(core, name) for name in ("", *NAMES)}
    names = ["a", "b", "c", "", "c", "a", "b", "c"]
    got = run(core, *(EmbedRequest(f"{i}", (LONG, SHORT), name) for i, name in enumerate(names)))
    assert [vectors_of(got[f"{i}"]) for i in range(len(names))] == [truth[name] for name in names]
    assert 1 <= sum(state.resident for state in core.adapters()) <= 2
    assert core.gauges().sequences_waiting == 0


def test_one_that_waits_for_its_adapter_delays_nobody(
    core: EmbeddingCore, folders: dict[str, Path]
) -> None:
    have(core, folders, *NAMES)
    absent = revision(core, resident=False)
    core.embed(EmbedRequest("waits", (SHORT,), absent))
    core.embed(EmbedRequest("base", (SHORT,)))
    assert core.gauges().sequences_waiting == 2
    ended = [chunk.id for chunk in core.step()]
    assert "base" in ended
    deadline = time.monotonic() + 30
    while "waits" not in ended:
        ended += [chunk.id for chunk in core.step()]
        assert time.monotonic() < deadline
    assert sorted(ended) == ["base", "waits"]


def test_a_retired_generation_serves_those_that_have_it_and_goes(
    core: EmbeddingCore, folders: dict[str, Path]
) -> None:
    have(core, folders, "a")
    truth = alone(core, "a")
    core.embed(EmbedRequest("long", (LONG, SHORT) * 4, "a"))
    got = core.step()
    core.retire_adapter("a")
    (state,) = core.adapters()
    assert (state.retired, state.active_leases) == (True, 1)
    while got[-1].finish is None:
        got += core.step()
    assert vectors_of(got) == truth * 4
    assert core.adapters() == ()
    with pytest.raises(InvalidRequest):
        core.embed(EmbedRequest("late", (SHORT,), "a"))


def test_an_aborted_request_gives_its_lease_back(
    core: EmbeddingCore, folders: dict[str, Path]
) -> None:
    have(core, folders, *NAMES)
    core.embed(EmbedRequest("runs", (LONG,) * 9, revision(core, resident=True)))
    core.embed(EmbedRequest("waits", (SHORT, LONG), revision(core, resident=False)))
    core.abort("waits")
    core.step()
    core.abort("runs")
    gauges = core.gauges()
    assert (gauges.completed_abort, gauges.sequences_waiting) == (2, 0)
    assert all(state.active_leases == 0 for state in core.adapters())


def test_an_adapter_whose_files_went_fails_its_requests_alone(
    core: EmbeddingCore, tmp_path: Path, folders: dict[str, Path]
) -> None:
    own = write_adapter(tmp_path / "own", seed=9, size=0.5)
    load(core, AdapterSource("own", str(own)))
    have(core, folders, "a", "b")
    assert not next(state.resident for state in core.adapters() if state.revision == "own")
    (own / "adapter_model.safetensors").unlink()
    got = run(core, EmbedRequest("lost", (SHORT,) * 3, "own"), EmbedRequest("fine", (SHORT,), "a"))
    assert got["lost"][-1].finish == "error" and got["fine"][-1].finish == "stop"
    gauges = core.gauges()
    assert (gauges.completed_error, gauges.sequences_waiting) == (1, 0)


def test_an_embedding_that_is_not_finite_gives_its_lease_back(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    folder = add_sentence_files(write_small_llama(tmp_path / "spoiled"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][9] = np.nan
    save_file(tensors, folder / "model.safetensors")
    core = core_of(folder)
    have(core, folders, "a")
    bad = EmbedRequest("bad", (SHORT, LONG, LONG), "a")
    got = run(core, bad, EmbedRequest("good", ((2, 3),), "a"))
    assert got["bad"][-1].finish == "error" and got["good"][-1].finish == "stop"
    assert [state.active_leases for state in core.adapters()] == [0]
    assert core.gauges().sequences_waiting == 0
    core.close()


@pytest.mark.parametrize("kind", ["encoder", "off"])
def test_where_there_are_no_adapters_it_says_so(
    model: Path, tmp_path: Path, folders: dict[str, Path], kind: str
) -> None:
    if kind == "encoder":
        core = core_of(save_sentence_folder(tmp_path, small_body("Bert")))
    else:
        core = core_of(model, None)
    refused = core.add_adapter(AdapterSource("a", str(folders["a"]))).exception()
    assert isinstance(refused, AdapterRefused) and refused.code == "lora_runtime_unavailable"
    assert ("encoder" in refused.message) == (kind == "encoder")
    with pytest.raises(InvalidRequest) as unknown:
        core.embed(EmbedRequest("x", (SHORT,), "a"))
    assert unknown.value.code == "adapter_not_found"
    assert core.adapters() == ()
    core.retire_adapter("a")
    core.close()


async def test_a_sleeping_engine_wakes_for_an_adapter_and_its_requests(
    model: Path, folders: dict[str, Path]
) -> None:
    engine = await LocalEngine.start(EngineSettings(model=str(model), threads=2, lora=LORA))
    try:
        for name in NAMES:
            await engine.add_adapter(AdapterSource(name, str(folders[name])))

        async def embedded(number: int) -> np.ndarray:
            request = EmbedRequest(f"{number}", (LONG,), NAMES[number % 3])
            return await _collect(engine.embed(request))

        rows = await asyncio.gather(*(embedded(number) for number in range(6)))
        for number in range(3):
            assert np.array_equal(rows[number], rows[number + 3])
        assert not np.array_equal(rows[0], rows[1])
    finally:
        await engine.close()


async def _collect(stream: AsyncIterator[EmbedOutput]) -> np.ndarray:
    return np.frombuffer(b"".join([chunk.vectors async for chunk in stream]), "<f4")
