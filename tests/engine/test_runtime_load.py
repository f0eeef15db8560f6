"""Loading a model from disk into a runtime: sizes, errors and imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import ModelError
from penstock.config import EngineSettings, Environment
from penstock.models.hub.sources import files_at
from penstock.runtime import load_runtime, start_runtime
from tests.support.checkpoints.small_llama import (
    CONTEXT,
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    VOCAB,
    write_small_llama,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("load") / "small-llama")


def settings(folder: Path, **options: object) -> EngineSettings:
    base = EngineSettings(model=str(folder), max_num_seqs=2, max_num_batched_tokens=32, threads=1)
    return msgspec.structs.replace(base, **options)


def test_a_loaded_folder_reports_its_sizes(folder: Path, tmp_path: Path) -> None:
    layers: list[tuple[int, int]] = []
    runtime = load_runtime(
        settings(folder),
        Environment(home=tmp_path, hf_home=tmp_path),
        progress=lambda done, of: layers.append((done, of)),
    )
    info = runtime.info
    assert (info.model_id, info.vocab_size, info.max_model_len) == ("small-llama", VOCAB, CONTEXT)
    assert (info.cache_blocks, info.block_size) == (2 * 1024 // 16, 16)
    assert layers == [(1, LAYERS), (2, LAYERS)]
    assert f"128 blocks x 16 tokens x {LAYERS} layers x 2 x {KV_HEADS} heads x {HEAD_DIM} x 2" in (
        runtime.report
    )
    assert runtime._backend.buffer_bytes <= 4 * (32 * 1000 + 2 * VOCAB) + (1 << 16)
    runtime.close()


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"does not fit: .* 50 MiB are available"):
        start_runtime(files_at(folder, "m"), settings(folder), available=50 << 20)


def test_an_unsupported_block_size_is_named(folder: Path) -> None:
    with pytest.raises(ModelError, match="block_size is 5"):
        start_runtime(files_at(folder, "m"), settings(folder, block_size=5))


def test_an_unsupported_head_dim_is_named(tmp_path: Path) -> None:
    odd = write_small_llama(tmp_path / "odd", head_dim=20)
    with pytest.raises(
        ModelError, match="odd: head_dim is 20; the CPU kernels support multiples of"
    ):
        load_runtime(settings(odd), Environment(home=tmp_path, hf_home=tmp_path))


def test_tensor_parallelism_on_a_cpu_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor_parallel_size is 2, .* it needs 2 GPUs"):
        start_runtime(files_at(folder, "m"), settings(folder, tensor_parallel_size=2, device="cpu"))


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    environment = Environment(home=tmp_path, hf_home=tmp_path)
    with pytest.raises(ModelError, match="no such model"):
        load_runtime(EngineSettings(model="no such model"), environment)


def test_importing_the_runtime_imports_no_torch() -> None:
    code = "import sys, penstock.runtime; assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
