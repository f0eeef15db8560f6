"""A model's first start on a machine measures which ISAs serve it; later starts use the saved
selection, and with it the same bits."""

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
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.cpu.isa_selection import saved_isa_selections, select_isas
from penstock.runtime.cpu.saved_isa_selections import FOLDER, save_selection
from penstock.scheduler import Scheduler
from penstock.system.checks import check_cpu_levels
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama
from tests.support.fake_clock import FakeClock, prefers

CACHE = CacheShape.uniform(blocks=8, block_size=16, layers=2, kv_heads=2, head_dim=16, item_bytes=2)
FAST = candidate_isas()
needs_several_isas = pytest.mark.skipif(len(FAST) < 2, reason="this machine or build has one level")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of float16 weights, which every vector ISA computes alike."""
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


@needs_several_isas
@pytest.mark.parametrize("level", FAST)
def test_each_isa_of_this_machine_can_be_selected(
    model: LoadedModel, folder: Path, tmp_path: Path, level: str
) -> None:
    """Real kernels, fake times."""
    clock = FakeClock(prefers(level))
    levels = select_isas(model, CACHE, settings(folder), tmp_path, clock)
    alike = {"attention": False, "other": False}
    for kind, own in (("attention", levels.attention), ("other", levels.other)):
        alike[kind] = _native.KernelSet(own).serves(kind, level, shared_halves=True)
    assert all(alike.values())
    serving = {one.level for one in levels.linear} or {levels.products}
    assert serving == {level}
    assert {cell.rows for cell in clock.runs if cell.kind == "products"} == {
        r for r, _ in MEASURED_ROWS
    }


@needs_several_isas
def test_a_machine_keeps_its_selection(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
    first = select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    other = FakeClock(prefers(FAST[-1]))
    assert select_isas(model, CACHE, settings(folder, threads=1), tmp_path, other) == first
    assert other.runs == []
    _, saved = saved_isa_selections(tmp_path)
    assert [(one.model_id, one.levels) for one in saved] == [("small-llama", first)]
    assert any("products, 64 rows" in name for name in saved[0].microseconds)


@needs_several_isas
def test_a_damaged_selection_is_measured_again(
    model: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:100])
    clock = FakeClock(prefers(FAST[-1]))
    again = select_isas(model, CACHE, settings(folder), tmp_path, clock)
    assert again == IsaSelection.all_of(FAST[-1]) and clock.runs
    assert select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers("x"))) == again


@needs_several_isas
def test_another_cache_dtype_is_measured_separately(
    model: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    select_isas(model, CACHE, settings(folder), tmp_path, FakeClock(prefers(FAST[0])))
    clock = FakeClock(prefers(FAST[-1]))
    select_isas(model, replace(CACHE, item_bytes=4), settings(folder), tmp_path, clock)
    assert clock.runs


@needs_several_isas
def test_a_busy_machine_uses_the_widest_isa_and_measures_at_the_next_start(
    model: LoadedModel, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy = FakeClock(lambda cell: 0.02)
    assert select_isas(model, CACHE, settings(folder), tmp_path, busy) == IsaSelection.all_of(
        FAST[-1]
    )
    assert "too busy" in caplog.text and saved_isa_selections(tmp_path)[1] == []


@pytest.mark.parametrize("level", FAST)
def test_an_operator_can_name_the_isa(
    model: LoadedModel, folder: Path, tmp_path: Path, level: str
) -> None:
    clock = FakeClock(prefers(FAST[0]))
    named = settings(folder, cpu_isa=level)
    assert select_isas(model, CACHE, named, tmp_path, clock) == IsaSelection.all_of(level)
    assert clock.runs == [] and not (tmp_path / FOLDER).exists()


def test_an_isa_that_this_machine_lacks_is_refused(folder: Path, tmp_path: Path) -> None:
    lacking = {"neon", "amx"} - set(_native.supported_isas())
    for level in lacking:
        with pytest.raises(ModelError, match=f"cpu_isa: ISA {level} cannot run here"):
            load(folder, tmp_path, cpu_isa=level)


def test_the_fingerprint_contains_the_arithmetic(folder: Path, tmp_path: Path) -> None:
    prints = {}
    for level in FAST:
        runtime = load(folder, tmp_path, cpu_isa=level)
        prints[level] = runtime.info.fingerprint
        runtime.close()
    assert len(set(prints.values())) == len(FAST)
    assert all(text.endswith(f"-{level}") for level, text in prints.items())
    reference = load(folder, tmp_path, kernel_backend="reference")
    assert reference.info.fingerprint.endswith("-reference")


@needs_several_isas
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


@needs_several_isas
@pytest.mark.parametrize("products", FAST)
def test_an_answer_does_not_depend_on_the_row_ranges(
    model: LoadedModel, folder: Path, tmp_path: Path, products: str
) -> None:
    """Each ISA in turn serves a range of rows: alone, batched and chunked answers agree, and so do
    they with a selection without ranges."""
    turns = itertools.cycle(FAST)
    ranges = tuple(RowRange(most, next(turns)) for most in (1, 2, 5, 17, None))
    plain = IsaSelection(products, FAST[0], FAST[-1])
    outcomes = []
    for levels in (plain, replace(plain, linear=ranges, experts=ranges)):
        home = tmp_path / str(len(outcomes))
        select_isas(model, CACHE, settings(folder), home, FakeClock(prefers(products)))
        _, (saved,) = saved_isa_selections(home)
        (home / FOLDER / saved.key.file_name).unlink()
        save_selection(home, msgspec.structs.replace(saved, levels=levels))
        runtime = load(folder, home)
        assert runtime.info.fingerprint.endswith(f"-{plain.arithmetic}")
        outcomes += [answers(runtime, rows) for rows in (1, 6)]
        outcomes.append(answers(runtime, 6, max_num_batched_tokens=5))
        runtime.close()
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])


@needs_several_isas
def test_real_measurements_select_isas_of_this_machine(
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


@needs_several_isas
def test_doctor_shows_the_selection(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
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
        tells_prompts_apart=runtime.info.tells_prompts_apart,
    )
    return generate(runtime, scheduler, requests_over(VOCAB, 100)).answers
