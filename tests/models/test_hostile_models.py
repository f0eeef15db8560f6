"""Damaged and contradictory model files are refused with a ModelError that names the file, or load.

Seeded mutations of small models of the newer families change config values, tensors, GGUF metadata
and bytes. No other exception, no crash, no hang and no allocation far beyond the size of the file
may follow. PENSTOCK_HOSTILE_FILES is the number of files per seed, for a longer search.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile_files import FOLDER_MUTATIONS, mutate_gguf, write_models

from penstock import _native
from penstock.base.errors import ModelError
from penstock.kernels.native import NativeOps
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model

FILES = int(os.environ.get("PENSTOCK_HOSTILE_FILES", "70"))
MOST_BYTES = 256 << 20
"""Address space that loading a model of less than a megabyte may add."""
MOST_SECONDS = 20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def ops() -> NativeOps:
    return NativeOps.eager(_native.ThreadPool(1))


@contextmanager
def guarded() -> Iterator[None]:
    """Fail if the body takes too much address space or too long."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def load(path: Path, ops: NativeOps, mtp: bool = False) -> None:
    """Open a model and pack all its weights, as an engine does."""
    files = ModelFiles("hostile", "folder" if path.is_dir() else "gguf", path)
    model = load_model(files, "auto", mtp="required" if mtp else "ignored")
    Decoder[Any](model.spec, model.weights, ops, max_model_len=64)


def fault_of(path: Path, ops: NativeOps, mtp: bool) -> str | None:
    """Return how loading broke the contract, or None."""
    try:
        with guarded():
            load(path, ops, mtp)
    except ModelError as error:
        text = str(error)
        if str(path) not in text:
            return f"the message does not name the file: {text}"
        return None
    except KeyboardInterrupt:
        return f"took longer than {MOST_SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_models_that_nothing_has_changed_load(models: dict[str, Path], ops: NativeOps) -> None:
    for name, path in models.items():
        with guarded():
            load(path, ops, " mtp" in name)


ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ("qwen3.5", {"rope_parameters": ROPE | {"mrope_section": [3, 3, 1]}}, "mRoPE"),
        ("qwen3.5", {"rope_parameters": ROPE | {"mrope_section": [9, -3, 2]}}, "mrope_section"),
        ("qwen3.5", {"rope_parameters": ROPE | {"mrope_section": [1 << 60] * 3}}, "mrope_section"),
        ("qwen3.5", {"rope_parameters": ROPE | {"partial_rotary_factor": 1.5}}, "partial_rotary"),
        ("qwen3.5", {"rope_parameters": ROPE | {"partial_rotary_factor": 0.0}}, "partial_rotary"),
        ("qwen3.5", {"rope_parameters": ROPE | {"partial_rotary_factor": math.nan}}, "partial_ro"),
        ("qwen3.5", {"rope_parameters": {"rope_theta": 0.0}}, "rope base"),
        ("lfm2", {"rope_parameters": {"rope_theta": -1.0, "rope_type": "default"}}, "rope base"),
        ("lfm2", {"norm_eps": math.nan}, "norm eps"),
        ("granite 4", {"residual_multiplier": 0.0}, "residual multiplier"),
        ("granite 4", {"residual_multiplier": 1e-200}, "residual multiplier"),
        ("granite 4", {"embedding_multiplier": math.nan}, "embedding multiplier"),
        ("granite 4", {"logits_scaling": "8"}, "logits_scaling"),
        ("falcon h1", {"lm_head_multiplier": math.inf}, "logit scale"),
        ("falcon h1", {"embedding_multiplier": 0.0}, "embedding scale"),
        ("llama4", {"attn_scale": math.nan}, "factor on queries"),
        ("llama4", {"floor_scale": 0}, "floor_scale"),
    ],
)
def test_a_value_that_no_model_has_is_refused(
    models: dict[str, Path],
    ops: NativeOps,
    tmp_path: Path,
    model: str,
    keys: dict[str, Any],
    message: str,
) -> None:
    config = json.loads((models[model] / "config.json").read_text()) | keys
    # Only a file with Infinity is read by a parser that accepts NaN.
    (tmp_path / "config.json").write_text(json.dumps(config | {"unread_limit": math.inf}))
    (tmp_path / "model.safetensors").symlink_to(models[model] / "model.safetensors")
    with pytest.raises(ModelError, match=message) as raised, guarded():
        load(tmp_path, ops)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("seed", range(4))
def test_hostile_files_load_or_are_refused_by_name(
    models: dict[str, Path], ops: NativeOps, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    faults = []
    for index in range(FILES):
        name = rng.choice(sorted(models))
        source = models[name]
        if source.is_dir():
            path = tmp_path / f"file{index}"
            path.mkdir()
            change = rng.choice(FOLDER_MUTATIONS)(source, path, rng)
        else:
            path = tmp_path / f"file{index}.gguf"
            change = mutate_gguf(source, path, rng)
        fault = fault_of(path, ops, " mtp" in name and rng.random() < 0.7)
        if fault is not None:
            faults.append(f"{name}: {change}: {fault}")
    assert not faults, "\n".join(faults)
