"""The processes of ranks: they start or report why not, end with each other, and leave no files."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from scheduled_requests import generate, requests_over, scheduler_of
from test_adapter_storm import World, run_storm
from tp_runtimes import (
    RANKS,
    rank_processes,
    start_single,
    start_tensor_parallel,
    tensor_parallel_settings,
)

import penstock.runtime.ranks.process_group as processes
from penstock.adapters.peft_folder import read_adapter
from penstock.adapters.shard import shard_adapter
from penstock.base.errors import ModelError
from penstock.config import LoraSettings
from penstock.engine.core import EngineCore
from penstock.engine.local import LocalEngine
from penstock.engine.processes.supervisor import EngineTask, StatusLine
from penstock.models.hub.sources import files_at
from penstock.runtime.ranks.load import start_tensor_parallel_runtime
from penstock.runtime.ranks.messages import RankTask
from penstock.runtime.ranks.process_group import RankProcessGroup
from tests.support.checkpoints.lora_adapters import SMALL
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama
from tests.support.checkpoints.small_moe import write_small_experts


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "small-llama")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def open_files() -> int:
    """Return the number of open files, without those of earlier tests that nothing refers to."""
    gc.collect()
    return psutil.Process().num_fds()


def test_if_a_process_cannot_be_started_the_others_are_stopped(
    base: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def second_fails(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if made:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        made.append(popen(*arguments, **options))
        return made[0]

    monkeypatch.setattr(processes.subprocess, "Popen", second_fails)
    with pytest.raises(BlockingIOError):
        RankProcessGroup(files_at(base, "m"), tensor_parallel_settings(), ("cpu",) * 3)
    assert made[0].returncode is not None
    assert not list(temporary.iterdir())


def test_ranks_are_told_the_file_of_the_towers(
    base: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = replace(files_at(base, "m"), mmproj=temporary / "mmproj-m.gguf")
    read = subprocess.Popen[bytes].communicate
    popen = subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess, "Popen", lambda command, **pipes: popen(["head", "-n", "1"], **pipes)
    )
    monkeypatch.setattr(processes.RankProcess, "watch", lambda rank, report: None)
    group = RankProcessGroup(files, tensor_parallel_settings(), ("cpu", "cpu"))
    line, _ = read(group.ranks[0].process)
    assert msgspec.json.decode(line, type=RankTask).mmproj == str(files.mmproj)
    group.close()


def test_a_rank_that_cannot_start_is_named(base: Path, temporary: Path) -> None:
    before = open_files()
    with pytest.raises(ModelError, match=r"^rank 1 \(cuda:7\): device is cuda:7, but this build"):
        start_tensor_parallel_runtime(
            files_at(base, "m"), tensor_parallel_settings(), ("cpu", "cuda:7")
        )
    assert not rank_processes() and not list(temporary.iterdir())
    assert open_files() == before


def test_a_rank_that_ends_while_it_starts_is_named(
    base: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match=r"rank 1 \(cpu\) ended with status 1 while it started"):
        start_tensor_parallel(base)
    assert not list(temporary.iterdir())


def test_an_indivisible_model_starts_no_process(base: Path, temporary: Path) -> None:
    with pytest.raises(ModelError, match="cannot be divided among 3 ranks"):
        start_tensor_parallel(base, tensor_parallel_size=3)
    assert not list(temporary.iterdir())


def test_a_rank_that_is_killed_ends_its_engine(
    base: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even in the middle of a step, where gloo raises and NCCL would wait forever."""
    lost = threading.Event()
    before = open_files()
    runtime = start_tensor_parallel(base, lost.set)
    (rank,) = rank_processes()
    rank.kill()
    with pytest.raises((OSError, RuntimeError)):
        for _ in range(100):
            generate(runtime, scheduler_of(runtime), requests_over(VOCAB, 60))  # type: ignore[arg-type]
    assert lost.wait(10)
    (logged,) = [one.getMessage() for one in caplog.records if one.levelname == "CRITICAL"]
    assert logged == "rank 1 (cpu) ended with status -9, and so does the engine"
    runtime.close()
    assert not rank_processes() and not list(temporary.iterdir())
    assert open_files() == before


def test_ranks_end_with_a_killed_leader(base: Path, tmp_path: Path) -> None:
    """Also between steps; their files are removed."""
    script = Path(__file__).parents[1] / "tp_engine.py"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    engine = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "engine.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert engine.stdin is not None and engine.stdout is not None
    task = EngineTask(tensor_parallel_settings(str(base)))
    engine.stdin.write(msgspec.json.encode(task) + b"\n")
    engine.stdin.flush()
    statuses = [msgspec.json.decode(engine.stdout.readline(), type=StatusLine) for _ in range(2)]
    assert [line.event for line in statuses] == ["report", "ready"]
    (rank,) = rank_processes(engine.pid)
    (folder,) = tmp_path.glob("penstock-ranks-*")
    engine.kill()
    rank.wait(10)
    assert not folder.exists()
    engine.communicate()


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(base: Path, temporary: Path) -> None:
    """After the ranks have connected: they disconnect, and this process can start others."""
    before = open_files()
    for _ in range(2):
        with pytest.raises(ModelError, match=r"does not fit: .* MiB on each of 2 devices"):
            start_tensor_parallel(base, kv_cache_memory_mb=2**22)
    assert not rank_processes() and not list(temporary.iterdir())
    assert open_files() == before


def test_experts_and_fp8_caches_are_divided_too(tmp_path: Path) -> None:
    base = write_small_experts(tmp_path / "small-experts")
    asked = [replace(one, max_tokens=8) for one in requests_over(VOCAB, 60)]
    answers = []
    for start in (start_single, start_tensor_parallel):
        runtime = start(base, kv_cache_dtype="f8e4m3", lora=None)
        outcome = generate(runtime, scheduler_of(runtime), asked)  # type: ignore[arg-type]
        answers.append([[token for token, _, _ in answer] for answer in outcome.answers])
        runtime.close()
    assert answers[0] == answers[1]


class TensorParallelWorld(World):
    """The world of an adapter storm: one rank gives the right answers, and two ranks in
    deterministic mode are in the storm."""

    async def start_probe(self, base: str) -> LocalEngine:
        settings = tensor_parallel_settings(
            max_num_seqs=3, cpu_kv_cache_memory_mb=0, lora=LoraSettings(max_rank=8)
        )
        runtime = start_single(
            Path(base), max_num_seqs=3, cpu_kv_cache_memory_mb=0, lora=settings.lora
        )
        return LocalEngine(EngineCore.for_runtime(runtime, settings))

    async def start(self, base: str, lora: LoraSettings) -> LocalEngine:
        options = {
            "max_num_seqs": 3,
            "cpu_kv_cache_memory_mb": 0,
            "lora": lora,
            "deterministic": True,
        }
        runtime = start_tensor_parallel(Path(base), **options)
        assert runtime.adapters is not None and runtime.adapters.max_bytes == lora.max_bytes
        return LocalEngine(
            EngineCore.for_runtime(runtime, tensor_parallel_settings(max_num_seqs=3, lora=lora))
        )

    async def answer_alone(self, probe: LocalEngine) -> int:
        await super().answer_alone(probe)
        whole = read_adapter(Path(self.folders[0]), SMALL, LoraSettings())
        return shard_adapter(whole, SMALL, 0, RANKS).size_bytes


def test_a_storm_of_loads_and_answers_over_ranks_leaves_nothing_behind(temporary: Path) -> None:
    """Every answer equals that of a single rank."""
    folder = temporary / "world"
    folder.mkdir()
    before = open_files()
    assert run_storm(folder, examples=6, steps=25, make_world=TensorParallelWorld) >= 100
    assert not rank_processes()
    assert [path.name for path in temporary.iterdir()] == ["world"]
    assert open_files() == before
