"""Weights that are quantized again while a model serves: the answers of a server that was started
with them, no lost token, and no reuse of anything that the old weights computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import write_quantized

import penstock.runtime.cpu.live_weights as cpu_live_weights
from penstock.base.errors import Conflict, Unavailable
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.load import load_core
from penstock.engine.saved_weights import SavedWeights
from penstock.engine.types import AdapterSource, TokenOutput, TokenRequest
from penstock.engine.weight_orders import (
    ApplyCalibration,
    AskWeights,
    CancelJob,
    Requantize,
    StartCalibration,
    StopCalibration,
    WeightOrder,
    WeightsState,
)
from penstock.quant.importance import ImportanceMatrix
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama
from tests.support.checkpoints.small_moe import write_small_experts

PROMPT = tuple(np.random.default_rng(1).integers(3, VOCAB, 40).tolist())
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("live") / "m")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_experts(tmp_path_factory.mktemp("live") / "m")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def loaded() -> Iterator[Callable[..., EngineCore]]:
    cores = []

    def load(folder: Path, **options: Any) -> EngineCore:
        chosen = {"max_model_len": CONTEXT, "max_num_seqs": 4, "kv_cache_memory_mb": 1} | options
        core = load_core(EngineSettings(model=str(folder), **chosen))
        assert isinstance(core, EngineCore)
        cores.append(core)
        return core

    yield load
    for core in cores:
        core.close()


def _asked(
    id: str, prompt: tuple[int, ...] = PROMPT, tokens: int = 12, **more: Any
) -> TokenRequest:
    return TokenRequest(id, prompt, Sampling(temperature=0.0), 0, tokens, top_logprobs=2, **more)


def finish(core: EngineCore, outputs: list[TokenOutput] | None = None) -> list[TokenOutput]:
    """Step until there is no work."""
    seen = [] if outputs is None else outputs
    while core.has_work:
        seen += core.step()
    return seen


def answer(core: EngineCore, asked: TokenRequest) -> tuple[list[Any], int]:
    """Return the tokens of an answer with their log-probabilities, and the cached tokens of its
    prompt."""
    core.submit(asked)
    outputs = [one for one in finish(core) if one.id == asked.id]
    assert outputs[-1].finish == "length"
    return [token for one in outputs for token in one.tokens], outputs[0].cached_tokens


def ask(
    core: EngineCore,
    order: WeightOrder = AskWeights(),  # noqa: B008
    outputs: list[TokenOutput] | None = None,
) -> WeightsState:
    """Carry out an order. Return the state, which may need steps."""
    future, deadline = core.change_weights(order), time.monotonic() + DEADLINE_S
    while not future.done():
        assert time.monotonic() < deadline
        made = core.step()
        if outputs is not None:
            outputs += made
        time.sleep(0.001)
    return future.result()


def wait(core: EngineCore, outputs: list[TokenOutput] | None = None) -> WeightsState:
    """Step until the job has ended, and return the state."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        made = core.step()
        if outputs is not None:
            outputs += made
        state = ask(core)
        assert state.job is not None and time.monotonic() < deadline
        if state.job.status != "running":
            return state
        time.sleep(0.001)


def packed(core: EngineCore) -> None:
    """Wait without a step until the weights of a job are packed."""
    deadline = time.monotonic() + DEADLINE_S
    while not core.weights.has_completions:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def change(core: EngineCore, order: WeightOrder) -> WeightsState:
    ask(core, order)
    state = wait(core)
    assert state.job is not None and state.job.status == "done", state.job
    return state


class Held:
    """Holds a job before its first layer until `release` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        release = threading.Event()
        self.release = release.set
        pack = cpu_live_weights.NativeNewWeights.pack

        def held(new: Any, progress: Any) -> None:
            assert release.wait(DEADLINE_S)
            pack(new, progress)

        monkeypatch.setattr(cpu_live_weights.NativeNewWeights, "pack", held)


@pytest.mark.parametrize("write", ["llama", "mixture"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "int4"), ("int4", "int8"), ("int8", None), ("int8", "Q4_K"), ("q4k", "Q8_0")],
    ids=str,
)
def test_answers_are_those_of_a_server_started_with_the_quantization(
    loaded: Any, request: Any, write: str, before: Any, after: Any
) -> None:
    folder = request.getfixturevalue(write)
    live, fresh = loaded(folder, quantization=before), loaded(folder, quantization=after)
    former = answer(live, _asked("old"))[0]
    state = change(live, Requantize(after))
    assert state.quantization == after
    expected, _ = answer(fresh, _asked("new"))
    assert answer(live, _asked("new"))[0] == expected != former
    assert live.info.fingerprint == fresh.info.fingerprint
    assert live.info.weight_bytes == fresh.info.weight_bytes


def test_a_stream_across_the_change_loses_no_token(
    llama: Path, loaded: Any, monkeypatch: Any
) -> None:
    core, held = loaded(llama), Held(monkeypatch)
    asked = [_asked(f"r{n}", PROMPT[n:], 100) for n in range(6)]
    for one in asked:  # two of them wait for a row
        core.submit(one)
    outputs: list[TokenOutput] = []
    ask(core, Requantize("int8"), outputs)
    for _ in range(20):
        outputs += core.step()
    held.release()
    packed(core)
    state = wait(core, outputs)
    assert state.job is not None and state.job.status == "done"
    assert any(one.finish is None for one in outputs[-4:]), "requests run across the change"
    finish(core, outputs)
    for one in asked:
        own = [output for output in outputs if output.id == one.id]
        assert [output.finish for output in own if output.finish] == ["length"]
        assert sum(len(output.tokens) for output in own) == 100


def test_an_int8_cache_serves_the_new_weights(llama: Path, loaded: Any) -> None:
    core = loaded(llama, kv_cache_dtype="int8")
    fresh = loaded(llama, kv_cache_dtype="int8", quantization="int4")
    core.submit(_asked("across", PROMPT[::-1], 60))
    outputs = core.step()
    ask(core, Requantize("int4"), outputs)
    packed(core)
    wait(core, outputs)
    finish(core, outputs)
    assert sum(len(one.tokens) for one in outputs) == 60
    expected = answer(fresh, _asked("new"))
    assert answer(core, _asked("new")) == expected
    assert expected[0] != answer(loaded(llama, quantization="int4"), _asked("new"))[0]


def test_the_prefix_cache_of_the_old_weights_is_not_used(llama: Path, loaded: Any) -> None:
    core, uncached = loaded(llama), loaded(llama, quantization="int4")
    answer(core, _asked("first"))
    assert answer(core, _asked("second"))[1] == 32
    change(core, Requantize("int4"))
    tokens, cached = answer(core, _asked("third"))
    assert cached == 0
    assert tokens == answer(uncached, _asked("third"))[0]
    assert answer(core, _asked("fourth")) == (tokens, 32)
    change(core, Requantize(None))
    assert answer(core, _asked("fifth"))[1] == 0, "the first weights are loaded again"


def test_blocks_of_a_request_that_ran_across_the_change_are_not_shared(
    llama: Path, loaded: Any
) -> None:
    core, fresh = loaded(llama), loaded(llama, quantization="int4")
    core.submit(_asked("across", PROMPT, 90))
    outputs = core.step()
    ask(core, Requantize("int4"), outputs)
    packed(core)
    wait(core, outputs)
    assert outputs[-1].finish is None
    finish(core, outputs)
    text = tuple(token.token_id for one in outputs for token in one.tokens)
    asked = _asked("again", (*PROMPT, *text[:40]), 10)
    assert answer(core, asked) == (answer(fresh, asked)[0], 0)


def test_requests_that_waited_for_a_row_use_the_new_weights_alone(
    llama: Path, loaded: Any, monkeypatch: Any
) -> None:
    options = {"max_num_seqs": 1}
    core, held = loaded(llama, **options), Held(monkeypatch)
    fresh = loaded(llama, quantization="int4", **options)
    answer(core, _asked("cached"))
    core.submit(_asked("running", PROMPT[::-1], 100))
    core.step()
    core.submit(_asked("waiting"))
    outputs: list[TokenOutput] = []
    ask(core, Requantize("int4"), outputs)
    held.release()
    packed(core)
    wait(core, outputs)
    finish(core, outputs)
    own = [one for one in outputs if one.id == "waiting"]
    assert own[0].cached_tokens == 0
    tokens = [token for one in own for token in one.tokens]
    assert tokens == answer(fresh, _asked("waiting"))[0]


def test_a_cancelled_job_leaves_the_weights(llama: Path, loaded: Any, monkeypatch: Any) -> None:
    core, held = loaded(llama), Held(monkeypatch)
    before, info = answer(core, _asked("a"))[0], core.info
    state = ask(core, Requantize("int4"))
    assert state.job is not None and state.job.status == "running"
    ask(core, CancelJob(("calibration",)))
    ask(core, CancelJob(("re_isq",)))
    held.release()
    state = wait(core)
    assert state.job is not None and state.job.status == "cancelled"
    assert state.quantization is None and core.info is info
    assert answer(core, _asked("a"))[0] == before
    assert change(core, Requantize("int8")).quantization == "int8", "the next job is accepted"


def test_progress_only_grows(llama: Path, loaded: Any) -> None:
    core = loaded(llama)
    seen = [ask(core, Requantize("int4")).job]
    while seen[-1] is not None and seen[-1].status == "running":
        core.step()
        seen.append(ask(core).job)
    done = [job.layers_done for job in seen if job is not None]
    assert done == sorted(done) and done[-1] == seen[-1].layers_total > 1
    assert seen[-1].status == "done"


def test_a_second_job_and_unknown_models_are_conflicts(
    llama: Path, loaded: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    core, held = loaded(llama), Held(monkeypatch)
    ask(core, Requantize("int4"))
    for order in (Requantize("int8"), StartCalibration(), ApplyCalibration("int4")):
        with pytest.raises(Conflict) as refused:
            ask(core, order)
        assert refused.value.code == "requantization_running"
    held.release()
    wait(core)
    bert = load_core(EngineSettings(model=str(save_sentence_folder(tmp_path, small_body("Bert")))))
    with pytest.raises(Conflict) as refused:
        bert.change_weights(AskWeights()).result()
    assert refused.value.code == "weights_unchangeable"
    bert.close()


def test_weights_that_do_not_fit_beside_the_old_ones_are_refused_with_the_bytes(
    llama: Path, loaded: Any, monkeypatch: Any
) -> None:
    core = loaded(llama)
    monkeypatch.setattr(cpu_live_weights, "available_bytes", lambda: 1000)
    with pytest.raises(
        Unavailable, match=r"need \d+ bytes beside the old ones, and 1000 bytes"
    ) as e:
        ask(core, Requantize("int8"))
    assert e.value.code == "out_of_memory"
    assert ask(core).quantization is None


def test_integers_of_the_file_are_refused(tmp_path: Path, loaded: Any) -> None:
    path, _ = write_quantized(tmp_path, "Q8_0")
    core = loaded(path)
    with pytest.raises(Conflict) as refused:
        ask(core, Requantize("int4"))
    assert refused.value.code == "weights_not_floats"


def test_adapters_are_packed_for_the_new_weights(llama: Path, loaded: Any, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", seed=5)
    lora = LoraSettings(max_adapters=2, max_rank=16)
    source = AdapterSource("rev", str(tmp_path / "a"))
    answers = []
    for before in (None, "int4"):
        core = loaded(llama, lora=lora, quantization=before)
        core.add_adapter(source)
        while not core.adapters():
            core.step()
        if before is None:
            answer(core, _asked("old", adapter="rev"))
            change(core, Requantize("int4"))
        answers.append(answer(core, _asked("new", adapter="rev")))
    assert answers[0] == answers[1]
    assert answers[0][0] != answer(core, _asked("base"))[0]


def test_calibration_counts_rows_and_changes_the_weights(
    llama: Path, loaded: Any, home: Path
) -> None:
    core = loaded(llama, quantization="int4")
    plain = answer(core, _asked("a"))[0]
    with pytest.raises(Conflict, match="call start first") as refused:
        ask(core, ApplyCalibration())
    assert refused.value.code == "no_calibration_data"
    assert ask(core, StartCalibration()).calibration.collecting
    assert answer(core, _asked("b", cache_salt=b"b"))[0] == plain
    sums = ask(core).calibration
    assert sums.layers == sums.layers_tracking and sums.min_rows == sums.max_rows == 51
    assert sums.total_rows == 51 * sums.layers
    state = ask(core, ApplyCalibration(save_as="mine.cimatrix"))
    assert state.calibration == sums, "the sums before they are applied"
    state = wait(core)
    assert state.job is not None and (state.job.kind, state.job.status) == ("calibration", "done")
    assert not state.calibration.collecting
    calibrated = answer(core, _asked("c"))[0]
    assert calibrated != plain
    saved = ImportanceMatrix.read(home / "importance" / "mine.cimatrix")
    assert {int(one.counts[0]) for one in saved.squares.values()} == {51}
    fresh = loaded(llama, quantization="int4", imatrix=str(home / "importance" / "mine.cimatrix"))
    assert answer(fresh, _asked("c"))[0] == calibrated
    assert ask(core, StopCalibration()).calibration.total_rows == 0


def test_a_calibration_goes_on_across_a_change(llama: Path, loaded: Any) -> None:
    core = loaded(llama)
    ask(core, StartCalibration())
    answer(core, _asked("a"))
    change(core, Requantize("int8"))
    answer(core, _asked("b"))
    assert ask(core).calibration.max_rows == 102


def test_a_calibration_of_weights_that_are_not_quantized_needs_a_type(
    llama: Path, loaded: Any
) -> None:
    core = loaded(llama)
    ask(core, StartCalibration())
    answer(core, _asked("a"))
    with pytest.raises(Conflict) as refused:
        ask(core, ApplyCalibration())
    assert refused.value.code == "weights_not_quantized"
    assert change(core, ApplyCalibration("int4")).quantization == "int4"


def test_a_job_runs_until_its_weights_are_saved_for_a_restart(
    loaded: Callable[..., EngineCore], llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, saving, released = loaded(llama), threading.Event(), threading.Event()
    core.weights.saved = SavedWeights(tmp_path)
    save = SavedWeights.save

    def slow(*arguments: Any) -> None:
        saving.set()
        assert released.wait(DEADLINE_S)
        save(*arguments)

    monkeypatch.setattr(SavedWeights, "save", slow)
    ask(core, Requantize("int8"))
    deadline = time.monotonic() + DEADLINE_S
    while not saving.is_set():
        assert time.monotonic() < deadline
        core.step()
    during = ask(core)
    released.set()
    assert during.job is not None and during.job.status == "running"
    after = wait(core)
    assert after.job is not None and after.job.status == "done"
    restored = SavedWeights(tmp_path).restored(EngineSettings(model=str(llama)))
    assert restored.quantization == "int8"
