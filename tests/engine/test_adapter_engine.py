"""Adapters behind a whole engine: requests with adapters beside others, adapters replaced and
unloaded meanwhile, with grammars and speculation; no adapter or request is left at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest
from grammar_engine import (
    ROWS,
    core_of,
    regex,
    request,
    run,
    start_gpu_model_on_cpu,
    start_model,
    tokenizer_and_vocabulary,
)
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import EngineFault, InvalidRequest, ServiceError
from penstock.config import LoraSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.ipc.client import EngineClient
from penstock.engine.local import LocalEngine
from penstock.engine.types import AdapterSource, AdapterState, TokenOutput, TokenRequest
from penstock.runtime import CpuRuntime
from penstock.runtime.gpu.runtime import GpuRuntime
from tests.support.checkpoints.lora_adapters import have, write_adapter
from tests.support.echo_engine import EchoCore, serving_echo

LORA = LoraSettings(max_adapters=1, max_rank=8)  # two slots
NAMES = ("a", "b", "c")
_, VOCABULARY = tokenizer_and_vocabulary()
GREEDY = Sampling(temperature=0.0)
LONG = tuple(40 + index % 60 for index in range(50))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(root / name, seed=seed, rank=3 + seed, size=0.5)
        for seed, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module", params=[start_model, start_gpu_model_on_cpu])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuRuntime | GpuRuntime]:
    """The runtime of a CPU, or that of a GPU, which plans ahead."""
    started = request.param(tmp_path_factory.mktemp("model") / "small", lora=LORA)
    yield started
    started.close()


@pytest.fixture
def core(runtime: CpuRuntime | GpuRuntime) -> Iterator[EngineCore]:
    one = core_of(runtime, lora=LORA)
    one.set_tokenizer(VOCABULARY)
    yield one
    empty(one)


def empty(core: EngineCore) -> None:
    """Empty all slots and finish every step, for the next engine over the same runtime; an adapter
    may still be loading."""
    while core.has_work:
        core.step()
    for state in core.adapters():
        core.retire_adapter(state.revision)
    deadline = time.monotonic() + 30
    while core.adapters():
        core.step()
        assert time.monotonic() < deadline


def asking(
    id: str, adapter: str = "", prompt: tuple[int, ...] = LONG, tokens: int = 12
) -> TokenRequest:
    return TokenRequest(id, prompt, GREEDY, 0, tokens, adapter=adapter)


def answers(core: EngineCore, *requests: TokenRequest) -> list[list[int]]:
    return [answer.tokens for answer in run(core, list(requests)).values()]


def test_requests_name_generations_and_unknown_ones_are_refused(
    core: EngineCore, folders: dict[str, Path]
) -> None:
    have(core, folders, "a", "b")
    mixed = answers(core, *(asking(name, name) for name in ("", "a", "b")))
    assert len({tuple(answer) for answer in mixed}) == 3
    for name, answer in zip(("", "a", "b"), mixed, strict=True):
        assert answers(core, asking("alone", name)) == [answer]
    with pytest.raises(InvalidRequest) as refused:
        core.submit(asking("x", "c"))
    assert (refused.value.code, refused.value.field) == ("adapter_not_found", "adapter")
    assert all(state.active_leases == 0 for state in core.adapters())


def test_more_adapters_than_slots_serve_one_batch(
    core: EngineCore, folders: dict[str, Path]
) -> None:
    have(core, folders, *NAMES)
    truth = {name: answers(core, asking("one", name))[0] for name in ("", *NAMES)}
    names = ["a", "b", "c", "", "c", "a", "b", "c"]
    got = answers(core, *(asking(f"{i}", name) for i, name in enumerate(names)))
    assert got == [truth[name] for name in names]
    assert 1 <= sum(state.resident for state in core.adapters()) <= 2


def test_replacing_an_adapter_serves_no_stale_prefix(
    core: EngineCore, folders: dict[str, Path]
) -> None:
    """The prompt's blocks are cached, computed with the previous revision."""
    have(core, folders, "a", "b")
    right = {name: answers(core, asking("fresh", name))[0] for name in ("a", "b")}
    core.retire_adapter("a")
    core.retire_adapter("b")
    have(core, folders, "b")
    chunks = {}
    core.submit(asking("next", "b"))
    while core.has_work:
        for chunk in core.step():
            chunks.setdefault(chunk.id, []).append(chunk)
    assert [t.token_id for chunk in chunks["next"] for t in chunk.tokens] == right["b"]
    assert right["a"] != right["b"]
    assert chunks["next"][0].cached_tokens == 48, "its own blocks are still worth something"
    core.submit(asking("base"))
    first = next(chunk for chunk in iter(lambda: core.step()[0], None))
    assert first.cached_tokens == 0
    core.abort("base")


def test_unloading_under_many_streams_lets_them_finish(
    core: EngineCore, folders: dict[str, Path]
) -> None:
    have(core, folders, "a")
    truth = answers(core, asking("one", "a", tokens=30))[0]
    streams = [asking(f"{i}", "a", tokens=30) for i in range(32)]
    for one in streams:
        core.submit(one)
    made: dict[str, list[int]] = {one.id: [] for one in streams}
    for step in range(10_000):
        if step == 5:
            core.retire_adapter("a")
        for chunk in core.step():
            made[chunk.id] += [token.token_id for token in chunk.tokens]
        if not core.has_work:
            break
    assert all(tokens == truth for tokens in made.values())
    assert core.adapters() == ()


def test_adapters_go_with_grammars_and_speculation(
    runtime: CpuRuntime | GpuRuntime, core: EngineCore, folders: dict[str, Path]
) -> None:
    have(core, folders, "a")
    form = regex(r"the (king|thing) is [0-9]{1,3} years")
    steered = [
        replace(request(f"{seed}", form, seed=seed), adapter="a" if seed % 2 else "")
        for seed in range(6)
    ]
    together = run(core, steered)
    for one in steered:
        assert together[one.id].finish == "stop"
        assert together[one.id].tokens == run(core, [one])[one.id].tokens
    assert core.adapters()[0].active_leases == 0
    plain = answers(core, *(asking(name, name, LONG * 2, 40) for name in ("", "a")))
    empty(core)
    guessing = core_of(runtime, lora=LORA, speculative_algorithm="ngram")
    have(guessing, folders, "a")
    assert answers(guessing, *(asking(name, name, LONG * 2, 40) for name in ("", "a"))) == plain
    empty(guessing)


def test_an_engine_without_adapters_says_so(tmp_path: Path, folders: dict[str, Path]) -> None:
    core = core_of(start_model(tmp_path / "small"))
    with pytest.raises(AdapterRefused) as refused:
        core.add_adapter(AdapterSource("a", str(folders["a"]))).result(0)
    assert refused.value.code == "lora_runtime_unavailable"
    with pytest.raises(InvalidRequest):
        core.submit(asking("x", "a"))
    assert core.adapters() == ()
    core.close()


async def test_a_local_engine_loads_beside_its_requests(
    runtime: CpuRuntime | GpuRuntime, folders: dict[str, Path], tmp_path: Path
) -> None:
    own = start_model(tmp_path / "small", lora=LORA)
    engine = LocalEngine(core_of(own, lora=LORA))
    states = await asyncio.gather(
        *(engine.add_adapter(AdapterSource(name, str(folders[name]))) for name in NAMES)
    )
    assert [state.rank for state in states] == [3, 4, 5]
    with pytest.raises(AdapterRefused):
        await engine.add_adapter(AdapterSource("gone", str(tmp_path / "nothing")))
    made = [chunk async for chunk in engine.generate(asking("x", "c"))]
    assert made[-1].finish == "length"
    await engine.retire_adapter("b")
    assert {state.revision for state in await engine.adapters()} == {"a", "c"}
    await engine.close()


class LoadingCore(EchoCore):
    """Answers loads on command, within a step as the real core does."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[Future[AdapterState]] = []
        self.retired: list[str] = []
        self._answers: SimpleQueue[Callable[[], None]] = SimpleQueue()

    @property
    def has_work(self) -> bool:
        return not self._answers.empty() or super().has_work

    def step(self) -> list[TokenOutput]:
        while not self._answers.empty():
            self._answers.get()()
        return super().step()

    def answer(self, load: int, state: AdapterState) -> None:
        """Answer a load, from any thread."""
        self._answers.put(partial(self.loads[load].set_result, state))
        self._wake()

    def refuse(self, load: int, error: ServiceError) -> None:
        """Refuse a load, from any thread."""
        self._answers.put(partial(self.loads[load].set_exception, error))
        self._wake()

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        self.loads.append(Future())
        return self.loads[-1]

    def retire_adapter(self, revision: str) -> None:
        self.retired.append(revision)

    def adapters(self) -> tuple[AdapterState, ...]:
        return (AdapterState("a", 4, 100, active_leases=2),)


async def test_loads_over_the_socket_are_answered_by_their_own_and_fail_with_the_engine(
    tmp_path: Path,
) -> None:
    core = LoadingCore()
    with serving_echo(str(tmp_path / "s"), core) as server:
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        loads = [
            asyncio.create_task(client.add_adapter(AdapterSource(name, "folder"))) for name in NAMES
        ]
        assert await client.adapters() == (AdapterState("a", 4, 100, active_leases=2),)
        await client.retire_adapter("old")
        assert (await client.gauges()).sequences_running == 0
        assert core.retired == ["old"] and len(core.loads) == 3
        core.answer(1, AdapterState("b", 8, 200))
        assert (await loads[1]).rank == 8
        core.refuse(0, AdapterRefused("lora_rank_limit_exceeded", "too wide"))
        with pytest.raises(ServiceError, match="too wide") as refused:
            await loads[0]
        assert (refused.value.status, refused.value.code) == (409, "lora_rank_limit_exceeded")
        server.stop()
        with pytest.raises(EngineFault, match="stopped while it loaded this adapter"):
            await loads[2]
        await client.close()


class Machine(RuleBasedStateMachine):
    """Loads, unloads and requests in any order, compared with a simple model of the expected
    state."""

    runtime: CpuRuntime | GpuRuntime
    folders: dict[str, Path]
    truth: dict[str, list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.core = core_of(self.runtime, lora=LORA)
        self.ready = threading.Event()
        self.core.call_when_ready(self.ready.set)
        self.loads: list[tuple[str, Future[AdapterState]]] = []
        self.open: dict[str, tuple[str, list[int]]] = {}
        self.named: set[str] = set()
        self.next_id = 0

    @rule(name=st.sampled_from(NAMES))
    def add(self, name: str) -> None:
        source = AdapterSource(name, str(self.folders[name]))
        self.loads.append((name, self.core.add_adapter(source)))
        self.named.add(name)

    @rule(name=st.sampled_from(NAMES))
    def retire(self, name: str) -> None:
        self.core.retire_adapter(name)
        self.named.discard(name)

    @rule(name=st.sampled_from(("", *NAMES)))
    def submit(self, name: str) -> None:
        id = f"{self.next_id}"
        self.next_id += 1
        held = name in [adapter for adapter, _ in self.open.values()]
        try:
            self.core.submit(asking(id, name, tokens=6))
        except InvalidRequest as error:
            assert error.code == "adapter_not_found" and name not in self.named
        else:
            assert name == "" or name in self.named or held
            self.open[id] = (name, [])

    @rule(which=st.integers(0, 63))
    def abort(self, which: int) -> None:
        """Abort one of the open requests, if any. Threads influence which are open, so the data
        that hypothesis generates must not depend on it."""
        if self.open:
            id = sorted(self.open)[which % len(self.open)]
            self.core.abort(id)
            del self.open[id]

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.take(self.core.step())

    def take(self, chunks: list) -> None:
        for chunk in chunks:
            name, tokens = self.open[chunk.id]
            tokens += [token.token_id for token in chunk.tokens]
            if chunk.finish is not None:
                assert chunk.finish == "length" and tokens == self.truth[name]
                del self.open[chunk.id]

    @invariant()
    def leases_are_those_of_the_open_requests(self) -> None:
        leases = Counter(name for name, _ in self.open.values() if name)
        states = {state.revision: state for state in self.core.adapters()}
        for name, state in states.items():
            assert state.active_leases == leases[name]
            assert not (state.retired and name in self.named)
        assert sum(state.resident for state in states.values()) <= 2
        assert sum(leases.values()) == sum(state.active_leases for state in states.values()) + sum(
            count for name, count in leases.items() if name not in states
        )

    def teardown(self) -> None:
        deadline = time.monotonic() + 30
        while self.open or not all(future.done() for _, future in self.loads):
            assert time.monotonic() < deadline, "something waits for ever"
            if not self.core.has_work:
                self.ready.wait(1)
                self.ready.clear()
            self.take(self.core.step())
        empty(self.core)
        pool = self.core._adapters
        assert pool is not None
        assert pool._resident_bytes == 0 and len(pool._free_slots) == 2
        gauges = self.core.gauges()
        assert gauges.kv_cache_blocks_used == gauges.sequences_running == 0


@pytest.mark.parametrize("runs", [25, pytest.param(250, marks=pytest.mark.slow)])
def test_loads_unloads_and_requests_in_any_order_leave_nothing(
    runtime: CpuRuntime | GpuRuntime, folders: dict[str, Path], runs: int
) -> None:
    core = core_of(runtime, lora=LORA)
    have(core, folders, *NAMES)
    Machine.runtime, Machine.folders = runtime, folders
    Machine.truth = {name: answers(core, asking("x", name, tokens=6))[0] for name in ("", *NAMES)}
    empty(core)
    assert ROWS > 2
    case = Machine.TestCase
    case.settings = hypothesis_settings(
        max_examples=runs, stateful_step_count=40, deadline=None, derandomize=True
    )
    case().runTest()
