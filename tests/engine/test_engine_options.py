"""Engine options that do not change answers, checked by the engine's counters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import Overloaded
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.load import load_core
from penstock.engine.types import EngineGauges, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.runtime import CpuRuntime, start_runtime
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

PROMPT = tuple(range(VOCAB - 100, VOCAB))


def settings(folder: str, **options: object) -> EngineSettings:
    """The largest step holds a whole context, so that one runtime serves every option."""
    return EngineSettings(
        model=folder,
        max_model_len=CONTEXT,
        max_num_batched_tokens=CONTEXT,
        threads=1,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRuntime]:
    folder = write_small_llama(tmp_path_factory.mktemp("model") / "small-llama")
    loaded = start_runtime(files_at(folder, "small-llama"), settings(str(folder), max_num_seqs=4))
    yield loaded
    loaded.close()


def request(id: str) -> TokenRequest:
    return TokenRequest(id, PROMPT, Sampling(temperature=0.0), seed=0, max_tokens=3)


def asked_twice(core: EngineCore) -> EngineGauges:
    """Return the gauges after one prompt was answered twice."""
    for id in ("first", "again"):
        core.submit(request(id))
        while core.has_work:
            core.step()
    return core.gauges()


def test_prefix_cache_n_of_0_keeps_no_prefix(runtime: CpuRuntime) -> None:
    on, one, off = (
        asked_twice(EngineCore.for_runtime(runtime, settings("m", max_num_seqs=4, **options)))
        for options in ({}, {"enable_prefix_caching": True}, {"enable_prefix_caching": False})
    )
    assert on.prefix_cache_hits == one.prefix_cache_hits == 1
    assert off.prefix_cache_lookups == 0 and off.tokens_processed > on.tokens_processed


def test_no_kv_cache_computes_every_context_anew(runtime: CpuRuntime) -> None:
    plain, anew = (
        asked_twice(EngineCore.for_runtime(runtime, settings("m", max_num_seqs=4, **options)))
        for options in ({"enable_prefix_caching": False}, {"no_kv_cache": True})
    )
    assert plain.tokens_processed == 2 * (len(PROMPT) + 2)
    assert anew.tokens_processed == 2 * (3 * len(PROMPT) + 1 + 2)
    assert anew.prefix_cache_lookups == 0


def test_max_num_seqs_are_computed_at_the_same_time(runtime: CpuRuntime) -> None:
    core = EngineCore.for_runtime(runtime, settings("m", max_num_seqs=2))
    for id in ("a", "b", "c"):
        core.submit(request(id))
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.gauges().sequences_running)
    assert most == core.gauges().sequences_capacity == 2


def test_max_queue_refuses_no_part_of_a_request_that_was_let_in(runtime: CpuRuntime) -> None:
    core = EngineCore.for_runtime(runtime, settings("m", max_num_seqs=2, max_queue=1))
    for place in range(8):
        core.submit(msgspec.structs.replace(request(f"seq-{place}"), group="one"))
        if place == 3:
            core.step()
    with pytest.raises(Overloaded):
        core.submit(request("other"))
    while core.has_work:
        core.step()
    assert core.gauges().completed_length == 8
    core.submit(request("other"))


def test_a_context_beyond_the_models_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(write_small_llama(tmp_path))
    core = load_core(EngineSettings(model=folder, max_model_len=10 * CONTEXT, threads=1))
    core.close()
    assert core.info.max_model_len == CONTEXT
    asked = f"a context of {10 * CONTEXT} tokens was asked for; the model has {CONTEXT}"
    assert asked in caplog.text
