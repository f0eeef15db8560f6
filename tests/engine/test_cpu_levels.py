"""A model's first start on a machine measures which levels serve it; later starts keep the choice,
and with it the bits of answers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from scheduled_requests import generate, poison, requests_over

from penstock import _native
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, Environment
from penstock.kernels.isa.choice import MEASURED_ROWS, Cell, SystemClock
from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange
from penstock.kernels.native.isa_trials import candidate_isas
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime import CpuRuntime, load_runtime
from penstock.runtime.cpu.isa_selection import saved_isa_selections, select_isas
from penstock.runtime.cpu.saved_isa_selections import FOLDER, keep
from penstock.runtime.memory import CacheShape
from penstock.scheduler import Scheduler
from penstock.system.checks import check_cpu_levels
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama
from tests.support.fake_clock import FakeClock, prefers

CACHE = CacheShape(blocks=8, block_size=16, layers=2, kv_heads=2, head_dim=16, item_bytes=2)
FAST = candidate_isas()
needs_a_choice = pytest.mark.skipif(len(FAST) < 2, reason="this machine or build has one level")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of float16 weights, which every vector level computes alike."""
    return write_small_llama(tmp_path_factory.mktemp("model") / "small-llama")


@pytest.fixture
def model(folder: Path) -> LoadedModel:
    return load_model(files_at(folder, "small-llama"), "auto")


def settings(folder: Path, threads: int = 2, **options: object) -> EngineSettings:
    return EngineSettings(
        model=str(folder),
        max_model_len=CONTEXT,
        max_num_seqs=6,
        max_num_batched_tokens=CONTEXT,
        threads=threads,
        **options,  # type: ignore[arg-type]
    )


def environment(home: Path) -> Environment:
    return Environment(home=home, hf_home=home)


def load(folder: Path, home: Path, **options: object) -> CpuRuntime:
    runtime = load_runtime(settings(folder, **options), environment(home))
    assert isinstance(runtime, CpuRuntime)
    return runtime


@needs_a_choice
@pytest.mark.parametrize("level", FAST)
def test_each_level_of_this_machine_can_win(
    model: LoadedModel, folder: Path, tmp_path: Path, level: str
) -> None:
    """Real kernels, false times."""
    clock = FakeClock(prefers(level))
    levels = select_isas(model, CACHE, settings(folder), tmp_path, clock)
    alike = {"attention": False, "other": False}
    for kind, own in (("attention", levels.attention), ("other", levels.other)):
        alike[kind] = _native.KernelSet(own).serves(kind, level, shared_halves=True)
    assert all(alike.values())
    serving = {one.level for one in levels.linear} or {levels.products}
    assert serving == {level}
    assert {cell.rows for cell in clock.runs if cell.kind == "products"} == {r for r, _ in MEASURED_ROWS}


@needs_a_choice
def test_a_machine_keeps_its_choice(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
    first = select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    other = FakeClock(prefers(FAST[-1]))
    assert select_isas(model, CACHE, settings(folder, threads=1), tmp_path, other) == first
    assert other.runs == []
    _, kept = saved_isa_selections(tmp_path)
    assert [(one.model_id, one.levels) for one in kept] == [("small-llama", first)]
    assert any("products, 64 rows" in name for name in kept[0].microseconds)


@needs_a_choice
def test_a_kept_choice_that_was_damaged_is_measured_again(
    model: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:100])
    clock = FakeClock(prefers(FAST[-1]))
    again = select_isas(model, CACHE, settings(folder), tmp_path, clock)
    assert again == IsaSelection.all_of(FAST[-1]) and clock.runs
    assert select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers("x"))) == again


@needs_a_choice
def test_a_cache_of_another_type_is_measured_for_itself(
    model: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    clock = FakeClock(prefers(FAST[-1]))
    select_isas(model, replace(CACHE, item_bytes=4), settings(folder), tmp_path, clock)
    assert clock.runs


@needs_a_choice
def test_a_busy_machine_is_served_by_the_widest_level_and_measured_at_the_next_start(
    model: LoadedModel, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy = FakeClock(lambda cell: 0.02)
    assert select_isas(model, CACHE, settings(folder), tmp_path, busy) == IsaSelection.all_of(
        FAST[-1]
    )
    assert "too busy" in caplog.text and saved_isa_selections(tmp_path)[1] == []


@pytest.mark.parametrize("level", FAST)
def test_an_operator_names_the_level(
    model: LoadedModel, folder: Path, tmp_path: Path, level: str
) -> None:
    clock = FakeClock(prefers(FAST[0]))
    named = settings(folder, cpu_level=level)
    assert select_isas(model, CACHE, named, tmp_path, clock) == IsaSelection.all_of(level)
    assert clock.runs == [] and not (tmp_path / FOLDER).exists()


def test_a_level_that_this_machine_lacks_is_refused(folder: Path, tmp_path: Path) -> None:
    lacking = {"neon", "amx"} - set(_native.supported_isas())
    for level in lacking:
        with pytest.raises(ModelError, match=f"cpu_level: level {level} cannot run here"):
            load(folder, tmp_path, cpu_level=level)


def test_the_fingerprint_names_the_arithmetic(folder: Path, tmp_path: Path) -> None:
    prints = {}
    for level in FAST:
        runtime = load(folder, tmp_path, cpu_level=level)
        prints[level] = runtime.info.fingerprint
        runtime.close()
    assert len(set(prints.values())) == len(FAST)
    assert all(text.endswith(f"-{level}") for level, text in prints.items())
    reference = load(folder, tmp_path, kernels="reference")
    assert reference.info.fingerprint.endswith("-reference")


@needs_a_choice
def test_answers_keep_their_bits_from_start_to_start(
    model: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    chosen = select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    seen = set()
    for _ in range(2):
        runtime = load(folder, tmp_path)
        seen.add((runtime.info.fingerprint, str(answers(runtime, 1))))
        runtime.close()
    ((fingerprint, _),) = seen
    assert fingerprint.endswith(f"-{chosen.arithmetic}")


@needs_a_choice
@pytest.mark.parametrize("products", FAST)
def test_an_answer_does_not_depend_on_the_ranges_that_serve_it(
    model: LoadedModel, folder: Path, tmp_path: Path, products: str
) -> None:
    """One after the other every level serves a range; alone, batched and chunked agree, and so do
    all of them with a choice without ranges."""
    turns = itertools.cycle(FAST)
    ranges = tuple(RowRange(most, next(turns)) for most in (1, 2, 5, 17, None))
    plain = IsaSelection(products, FAST[0], FAST[-1])
    outcomes = []
    for levels in (plain, replace(plain, linear=ranges, experts=ranges)):
        home = tmp_path / str(len(outcomes))
        select_isas(model, CACHE, settings(folder), home, FakeClock(prefers(products)))
        _, (kept,) = saved_isa_selections(home)
        (home / FOLDER / kept.key.file_name).unlink()
        keep(home, msgspec.structs.replace(kept, levels=levels))
        runtime = load(folder, home)
        assert runtime.info.fingerprint.endswith(f"-{plain.arithmetic}")
        outcomes += [answers(runtime, rows) for rows in (1, 6)]
        outcomes.append(answers(runtime, 6, max_num_batched_tokens=5))
        runtime.close()
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])


@needs_a_choice
def test_measuring_in_truth_chooses_among_the_levels_of_this_machine(
    model: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    runs: list[Cell] = []

    class Watched(SystemClock):
        def seconds(self, trial):  # type: ignore[no-untyped-def]
            runs.append(trial.cell)
            return super().seconds(trial)

    levels = select_isas(model, CACHE, settings(folder), tmp_path, Watched())
    named = {levels.products, levels.attention, levels.other}
    assert runs and named <= set(FAST)


@needs_a_choice
def test_doctor_shows_what_was_chosen(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
    before = check_cpu_levels(tmp_path)
    assert before.name == "cpu_levels" and before.status == "ok"
    assert ", ".join(FAST) in before.message and "first start" in before.message
    select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    after = check_cpu_levels(tmp_path).message
    assert f"small-llama: products {FAST[-1]} (more {FAST[0]}), attention" in after


def answers(runtime: CpuRuntime, rows: int, max_num_batched_tokens: int = CONTEXT) -> object:
    poison(runtime)
    scheduler = Scheduler(
        num_blocks=runtime.info.cache_blocks,
        block_size=16,
        max_model_len=runtime.info.max_model_len,
        max_num_seqs=rows,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    return generate(runtime, scheduler, requests_over(VOCAB, 100)).answers
