"""Random loads, replacements, unloads and answers against a dictionary: every answer is that of its
revision, and in the end nothing is left of slots, bytes, leases or files."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import ServiceError
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.engine.core import EngineCore
from penstock.engine.local import LocalEngine
from penstock.engine.types import AdapterSource, TokenRequest
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.small_llama import write_small_llama

_T = TypeVar("_T")
ALIASES, FOLDERS, TOKENS = ("a", "b", "c"), 6, 10
PROMPTS = ((1, 2, 3), tuple(range(40)), (*range(40), 7))


class World:
    """One engine with room for two of its adapters, and what each of them answers alone."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = folder
        self.numbers = itertools.count()
        self.operations = 0
        self.folders = [
            str(write_adapter(folder / f"a{n}", seed=n, rank=8)) for n in range(FOLDERS)
        ]
        base = str(write_small_llama(folder / "base"))
        probe = self.run(self.start_probe(base))
        size = self.run(self.answer_alone(probe))
        self.run(probe.close())
        self.lora = LoraSettings(max_adapters=len(ALIASES), max_rank=8, max_bytes=5 * size // 2)
        self.engine = self.run(self.start(base, self.lora))
        assert isinstance(self.engine._core, EngineCore)
        self.core = self.engine._core
        assert self.core._adapters is not None
        self.slots = sorted(self.core._adapters._free_slots)

    async def start_probe(self, base: str) -> LocalEngine:
        """An engine with room for all adapters, whose answers are the expected ones."""
        return await self.start(base, LoraSettings())

    async def start(self, base: str, lora: LoraSettings) -> LocalEngine:
        """An engine with fewer slots than adapters."""
        return await LocalEngine.start(self.settings(base, lora))

    async def answer_alone(self, probe: LocalEngine) -> int:
        """Return the answers of the base (number -1) and of each adapter alone, and the size of an
        adapter."""
        self.answers: dict[tuple[int, int], list[int]] = {}
        for number in range(-1, FOLDERS):
            revision = "" if number < 0 else str(number) * 64
            if revision:
                state = await probe.add_adapter(AdapterSource(revision, self.folders[number]))
            for prompt in range(len(PROMPTS)):
                one = Running(probe, revision, self.request(revision, prompt))
                await one.read(all_of_it=True)
                self.answers[number, prompt] = one.tokens
        distinct = {tuple(answer) for answer in self.answers.values()}
        assert len(distinct) == len(self.answers)  # a wrong adapter would be noticed
        return state.bytes

    @staticmethod
    def settings(base: str, lora: LoraSettings) -> EngineSettings:
        return EngineSettings(
            model=base, max_num_seqs=3, kv_cache_memory_mb=1, threads=1, lora=lora
        )

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run_until_complete(work)

    def request(self, revision: str, prompt: int) -> TokenRequest:
        name = f"r{next(self.numbers)}"
        greedy = Sampling(temperature=0.0)
        return TokenRequest(name, PROMPTS[prompt], greedy, 0, TOKENS, adapter=revision)

    def close(self) -> None:
        self.run(self.engine.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Running:
    """An answer that is being read."""

    def __init__(
        self, engine: LocalEngine, revision: str, request: TokenRequest, expected: Any = None
    ) -> None:
        self.revision, self.expected = revision, expected
        self.chunks = cast("Any", engine.generate(request))
        self.tokens: list[int] = []

    async def read(self, *, all_of_it: bool) -> None:
        async for chunk in self.chunks:
            self.tokens += [token.token_id for token in chunk.tokens]
            if not all_of_it:
                return


def storm_over(world: World) -> type[RuleBasedStateMachine]:
    class Storm(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.aliases: dict[str, str] = {}
            self.running: list[Running] = []
            self.seen = {"": -1}  # revision -> number

        @initialize()
        def begin(self) -> None:
            self.home = TemporaryDirectory(prefix="penstock-storm-")
            self.catalog = AdapterCatalog(world.lora, Path(self.home.name))
            self.catalog.attach(world.engine)

        @rule(
            alias=st.sampled_from(ALIASES),
            number=st.integers(0, FOLDERS - 1),
            replace=st.booleans(),
        )
        def load(self, alias: str, number: int, replace: bool) -> None:
            allowed = replace or alias not in self.aliases
            order = AdapterLoadRequest(alias, world.folders[number], replace=replace)
            try:
                adapter = world.run(self.catalog.load(order))
            except AdapterRefused as error:
                assert not allowed or error.code == "lora_adapter_limit_exceeded"
                return
            assert allowed
            self.aliases[alias] = adapter.revision
            self.seen[adapter.revision] = number

        @rule(alias=st.sampled_from(ALIASES))
        def unload(self, alias: str) -> None:
            try:
                removed = world.run(self.catalog.unload(alias))
            except AdapterRefused:
                assert alias not in self.aliases
                return
            assert removed.revision == self.aliases.pop(alias)

        # The engine's thread influences what is running and what was seen, so the generated data
        # must not depend on either: an index picks among the open requests.
        @rule(which=st.integers(0, 255), prompt=st.integers(0, len(PROMPTS) - 1))
        def ask(self, which: int, prompt: int) -> None:
            if len(self.running) == 6:
                return
            revision = sorted(self.seen)[which % len(self.seen)]
            expected = world.answers[self.seen[revision], prompt]
            request = world.request(revision, prompt)
            one = Running(world.engine, revision, request, expected)
            try:
                world.run(one.read(all_of_it=False))
            except ServiceError as error:
                assert error.code == "adapter_not_found"
                assert revision not in self.aliases.values()
                return
            self.running.append(one)

        @rule(which=st.integers(0, 5))
        def finish(self, which: int) -> None:
            if not self.running:
                return
            one = self.running.pop(which % len(self.running))
            world.run(one.read(all_of_it=True))
            assert one.tokens == one.expected

        @rule(which=st.integers(0, 5))
        def leave(self, which: int) -> None:
            if not self.running:
                return
            one = self.running.pop(which % len(self.running))
            world.run(one.chunks.aclose())

        @invariant()
        def counted(self) -> None:
            world.operations += 1

        @invariant()
        def aliases_are_as_they_should_be(self) -> None:
            if hasattr(self, "catalog"):
                assert {a.alias: a.revision for a in self.catalog.adapters} == self.aliases

        @invariant()
        def engine_has_what_is_named_or_used(self) -> None:
            states = {state.revision: state for state in world.run(world.engine.adapters())}
            named = set(self.aliases.values())
            assert named <= set(states)
            for revision, state in states.items():
                asked = sum(one.revision == revision for one in self.running)
                assert state.active_leases <= asked
                assert state.retired == (revision not in named)
                assert revision in named or state.active_leases
            resident = sum(state.bytes for state in states.values() if state.resident)
            assert resident <= world.lora.max_bytes

        def teardown(self) -> None:
            for one in self.running:
                world.run(one.chunks.aclose())
            for alias in list(self.aliases):
                world.run(self.catalog.unload(alias))
            world.run(self.catalog.settle())
            while world.run(world.engine.gauges()).sequences_running:
                pass  # an engine that overlaps drops a sequence with the step that it is in
            assert world.run(world.engine.adapters()) == ()
            core, pool = world.core, world.core._adapters
            assert pool is not None and pool._resident_bytes == 0
            assert sorted(pool._free_slots) == world.slots
            assert core._admissions._leases == {}
            assert core._scheduler.gauges().sequences_running == 0
            left = {path.name for path in Path(self.home.name).glob("adapters/run-*/*")}
            assert left <= {"lock"}
            world.run(self.catalog.close())
            self.home.cleanup()

    return Storm


def run_storm(
    folder: Path, *, examples: int, steps: int, make_world: Callable[[Path], World] = World
) -> int:
    """How many operations there were."""
    world = make_world(folder)
    checked = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(storm_over(world), settings=checked)
        return world.operations
    finally:
        world.close()


def test_storm_of_loads_and_answers_leaves_nothing_behind(tmp_path: Path) -> None:
    run_storm(tmp_path, examples=20, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_long_storm_of_loads_and_answers_leaves_nothing_behind(tmp_path: Path) -> None:
    assert run_storm(tmp_path, examples=250, steps=50) >= 10_000
