"""Damaged `mmproj` files are refused with a ModelError that names the file, or load."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hostile_files import mutate_gguf
from mmproj_export import export
from safetensors.numpy import load_file
from test_hostile_models import guarded
from test_image_mmproj import CONVERSIONS, VISION

from penstock import _native
from penstock.base.errors import ModelError
from penstock.kernels.native import NativeOps
from penstock.models.families.registry import media_spec_of_mmproj
from penstock.quant.gguf.gguf_file import GgufFile
from tests.support.vision_cases import CASES
from tests.support.vision_models import media_spec, save, small_model

FAMILIES = ("llava-next", "gemma3", "internvl", "mistral3")
FILES = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in FAMILIES:
        case = CASES[name]
        folder = tmp_path_factory.mktemp("model")
        save(folder, small_model(case.name, case.text, case.vision, case.whole), case.processor())
        normalization = media_spec(folder).towers[0].normalization
        found[name] = export(
            folder / "mmproj.gguf",
            CONVERSIONS[name],
            VISION,
            load_file(folder / "model.safetensors"),
            "q8_0",
            normalization.mean,
            normalization.std,
        )
    return found


def load(path: Path, ops: NativeOps) -> None:
    """Open a file and pack the weights of its towers, as an engine does."""
    file = GgufFile(path)
    for tower in media_spec_of_mmproj(file).towers:
        tower.open(file, "auto").build(ops)


@pytest.mark.parametrize("seed", range(2))
def test_hostile_files_load_or_are_refused_by_name(
    files: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    ops = NativeOps.eager(_native.ThreadPool(1))
    rng, faults = random.Random(seed), []
    for index in range(FILES):
        name = rng.choice(FAMILIES)
        path = tmp_path / f"file{index}.gguf"
        change = mutate_gguf(files[name], path, rng)
        try:
            with guarded():
                load(path, ops)
        except ModelError as error:
            if str(path) not in str(error):
                faults.append(f"{name}: {change}: names no file: {error}")
        except KeyboardInterrupt:
            faults.append(f"{name}: {change}: takes too long")
        except Exception as error:
            faults.append(f"{name}: {change}: {type(error).__name__}: {error}")
    assert not faults, "\n".join(faults)


def test_files_that_nothing_has_changed_load(files: dict[str, Path]) -> None:
    ops = NativeOps.eager(_native.ThreadPool(1))
    for path in files.values():
        with guarded():
            load(path, ops)
