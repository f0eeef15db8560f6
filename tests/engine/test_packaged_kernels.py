"""Triton kernels that were compiled and packaged are found, loaded and started without Triton."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_base_models import write_quantized

from penstock.kernels.cuda.launcher import DriverLauncher, open_packaged
from penstock.kernels.cuda.library import Unavailable
from penstock.kernels.triton.compile.archive import Archive, Cubin, write_archive
from penstock.kernels.triton.compile.packaged_kernels import REQUEST, Misaligned, PackagedKernels
from penstock.kernels.triton.compile.signature import Signature
from penstock.models.decoder.rope_spec import RopeSpec
from tests.support.checkpoints.float8_checkpoints import write_float8
from tests.support.checkpoints.lora_adapters import SMALL
from tests.support.checkpoints.small_llama import write_small_llama

pytest.importorskip("triton", reason="Triton has no build for this platform")

_HERE = Path(__file__).parent
_SOURCES = _HERE.parents[1] / "csrc"
# Wide enough for the groups of 128 columns of 8-bit floats; attention is wider than the model.
_WIDE = replace(
    SMALL, hidden_size=128, head_dim=64, intermediate_size=128, rope=RopeSpec(10_000.0, 64)
)
_PACKAGE = f"""
from pathlib import Path
import sys
import penstock.kernels.triton
from penstock.kernels.triton.compile import package
from penstock.kernels.triton.compile import packaged_signatures as wanted
if __name__ == "__main__":
    heads = ({_WIDE.num_heads}, {_WIDE.num_kv_heads}, {_WIDE.head_dim})
    widths = ({_WIDE.hidden_size}, heads, {_WIDE.intermediate_size}, {_WIDE.vocab_size})
    sizes = wanted.Sizes(*widths, False, blocks=True)
    wanted.INTEGERS = {{name: wanted.INTEGERS[name] for name in ("Q8_0", "Q4_1")}}
    package.build(Path(sys.argv[1]), wanted.packaged_signatures([sizes]), [90])
"""
_LAYER = {"rms_norm_kernel", "rope_cache_kernel", "attention_kernel", "decode_attention_kernel"}
_FLOAT8 = {"quantize_float8_kernel", "linear_float8_kernel"}
_INTEGER = {"quantize_kernel", "linear_affine_kernel", "embedding_affine_kernel"}
_LAUNCHED = {
    "float": {"linear_kernel", "embedding_kernel"},
    "adapters": {"linear_kernel", "lora_shrink_kernel", "lora_expand_kernel"},
    "8-bit floats": {*_FLOAT8, "widen_float8_kernel"},
    "8-bit floats, deterministic": _FLOAT8,
    "rounded to 8-bit floats": {*_FLOAT8, "widen_float8_kernel"},
    "Q8_0": _INTEGER,
    "Q4_1": _INTEGER,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the part of the CUDA library that launches cubins, and the fake driver."""
    if shutil.which("g++") is None or shutil.which("cc") is None:
        pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("launcher")
    library, driver = folder / "launcher.so", folder / "driver.so"
    shared = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]
    source = _SOURCES / "cuda" / "modules.cc"
    subprocess.run(
        ["g++", "-std=c++17", *shared, str(library), f"-I{_SOURCES}", str(source), "-ldl"],
        check=True,
    )
    subprocess.run(["cc", *shared, str(driver), str(_HERE / "fake_cuda_driver.c")], check=True)
    return library, driver


def _python(arguments: list[str], **environment: str) -> str:
    path = os.pathsep.join(
        [str(_HERE), str(_HERE.parents[1]), *(part for part in sys.path if part)]
    )
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return the kernels that a small model launches, for sm_90a."""
    assert request.config.cache is not None
    folder = tmp_path_factory.mktemp("archive")
    script = folder / "package_small.py"
    script.write_text(_PACKAGE)
    cache = str(request.config.cache.mkdir("triton"))
    _python([str(script), str(folder)], TRITON_CACHE_DIR=cache)
    return folder / "kernels_sm_90a.zip"


@pytest.fixture(scope="module")
def steps(
    built: tuple[Path, Path], archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    sizes = {"width": _WIDE.hidden_size, "head_dim": _WIDE.head_dim, "ff": _WIDE.intermediate_size}
    write_small_llama(folder / "plain", **sizes)
    write_float8(folder / "plain", folder / "float8", "fp8-block", torch.float16)
    for kind in ("Q8_0", "Q4_1"):
        (folder / kind).mkdir()
        path, _ = write_quantized(folder / kind, kind, _WIDE)
        path.rename(folder / path.name)
    script = str(_HERE / "packaged_kernel_worker.py")
    answer: dict[str, Any] = json.loads(
        _python([script, *map(str, built), str(archive), str(folder)])
    )
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("way", _LAUNCHED)
def test_without_triton_every_launch_of_a_runtime_is_a_packaged_kernel(
    steps: dict[str, Any], way: str
) -> None:
    assert steps.keys() == _LAUNCHED.keys()
    own = steps[way]
    assert own["missing"] == 0
    assert own["served"] >= 15 and own["launches"] > 100
    assert set(own["kernels"]) >= _LAYER | _LAUNCHED[way]
    assert "0 compiled here" in own["report"]


@pytest.mark.slow
def test_parameters_have_the_offsets_of_the_cubins(steps: dict[str, Any]) -> None:
    assert {way: own["wrong"] for way, own in steps.items() if own["wrong"]} == {}


def _notes(driver: Path) -> list[str]:
    loaded = ctypes.CDLL(str(driver))
    loaded.double_notes.restype = ctypes.c_char_p
    notes: str = loaded.double_notes().decode()
    return notes.splitlines()


@pytest.fixture
def launcher(built: tuple[Path, Path]) -> DriverLauncher:
    library, driver = built
    return DriverLauncher(library, 0, str(driver))


def _cubin(types: tuple[str, ...], shared_bytes: int, name: str) -> Cubin:
    signature = Signature("module", name, types, (), 4, 3)
    return Cubin(signature, "hash", name, 4, shared_bytes, 2, "file")


def _request(grid: tuple[int, int, int], stream: int, parameters: bytes) -> bytes:
    return struct.pack(REQUEST, *grid, len(parameters), stream) + parameters


@pytest.mark.parametrize(("shared_bytes", "asked"), [(48 << 10, False), (100 << 10, True)])
def test_more_shared_memory_than_48_kib_is_requested(
    built: tuple[Path, Path], launcher: DriverLauncher, shared_bytes: int, asked: bool
) -> None:
    name = f"kernel_{shared_bytes}"
    assert isinstance(launcher.load(b"\x7fELF", _cubin((), shared_bytes, name)), int)
    expected = [f"attribute {name} 8 {shared_bytes}"] if asked else []
    assert [line for line in _notes(built[1]) if line.startswith(f"attribute {name}")] == expected


def test_an_error_of_the_driver_is_reported(launcher: DriverLauncher) -> None:
    reason = launcher.load(b"no cubin", _cubin((), 0, "broken"))
    assert reason == "its cubin cannot be loaded (CUDA_ERROR_INVALID_IMAGE)"


def test_an_unaligned_tensor_is_not_launched(launcher: DriverLauncher) -> None:
    cubin = _cubin(("i32", "*bf16", "fp32", "*i64"), 0, "aligned")
    handle = launcher.load(b"\x7fELF", cubin)
    assert isinstance(handle, int)
    for first, last, served in [(16, 32, True), (24, 32, False), (16, 40, False)]:
        parameters = struct.pack(cubin.layout, 3, first, 0.5, last)
        with contextlib.nullcontext() if served else pytest.raises(Misaligned):
            launcher.start(handle, _request((1, 1, 1), 0, parameters))


def test_a_thread_without_context_gets_that_of_the_kernel(
    built: tuple[Path, Path], launcher: DriverLauncher
) -> None:
    handle = launcher.load(b"\x7fELF", _cubin((), 0, "elsewhere"))
    assert isinstance(handle, int)
    ctypes.CDLL(str(built[1])).double_forget_context()
    launcher.start(handle, _request((2, 3, 1), 5, bytes(16)))
    assert _notes(built[1])[-1].startswith("launch elsewhere 2,3,1 128,1,1 0 5 ")


@pytest.mark.slow
def test_a_kernel_whose_source_changed_is_not_served(archive: Path) -> None:
    from penstock.kernels.triton import norm

    read = Archive(archive)
    (cubin, *_) = [one for one in read.cubins if one.signature.kernel == "rms_norm_kernel"]
    read.cubins = [replace(cubin, source="another")]

    class Nothing:
        def load(self, image: bytes, cubin: Cubin) -> int | str:
            return "was asked for"

    signature = cubin.signature
    x, weight = (
        torch.zeros(1, _WIDE.hidden_size, dtype=torch.bfloat16),
        torch.zeros(_WIDE.hidden_size),
    )
    arguments = (x, x, x, x, weight, 1e-6)
    sizes = dict(signature.constants)
    call = (norm.rms_norm_kernel, (1,), arguments, signature.num_warps, signature.num_stages, sizes)
    changed = PackagedKernels(read, Nothing(), lambda: 0)  # type: ignore[arg-type]
    assert changed.start(*call) == "packaged from another source"
    read.cubins = [cubin]
    assert PackagedKernels(read, Nothing(), lambda: 0).start(*call) == "was asked for"  # type: ignore[arg-type]
    other = (*call[:3], 16, *call[4:])
    same = PackagedKernels(read, Nothing(), lambda: 0)  # type: ignore[arg-type]
    assert same.start(*other) == "not packaged for these sizes and types"
    assert (same.served, same.missing) == (0, 1)


class FailingLauncher:
    """Launches cubins a given number of times, and then fails."""

    def __init__(self, successes: int) -> None:
        self.left = successes
        self.asked = 0

    def load(self, image: bytes, cubin: Cubin) -> int | str:
        return 1

    def start(self, handle: int, request: bytes) -> None:
        self.asked += 1
        if self.asked > self.left:
            raise RuntimeError("a packaged kernel: CUDA_ERROR_NOT_SUPPORTED")


def _one_packaged(
    folder: Path, launcher: FailingLauncher
) -> tuple[PackagedKernels, tuple[Any, ...]]:
    """Return an archive of one kernel, and a call of it."""
    from penstock.kernels.triton import norm
    from penstock.kernels.triton.compile.launch import Launch
    from penstock.kernels.triton.compile.signature import source_hash

    x = torch.zeros(1, 8, dtype=torch.bfloat16)
    launch = Launch(norm.rms_norm_kernel, (x, x, 1), {"WIDTH": 8}, 4, 3)
    cubin = Cubin(launch.signature(), source_hash(launch.kernel), "entry", 4, 0, 0, "one.cubin")
    write_archive(folder / "one.zip", "sm_90a", "none", [(cubin, b"image")])
    call = (launch.kernel, (1,), launch.arguments, 4, 3, launch.constants)
    return PackagedKernels(Archive(folder / "one.zip"), launcher, lambda: 0), call


def test_a_first_launch_that_fails_ends_the_use_of_packaged_kernels(tmp_path: Path) -> None:
    launcher = FailingLauncher(successes=0)
    packaged, call = _one_packaged(tmp_path, launcher)
    for _ in range(2):
        reason = packaged.start(*call)
        assert reason is not None and "CUDA_ERROR_NOT_SUPPORTED" in reason
    assert launcher.asked == 1
    assert packaged.report().startswith("kernels are compiled on first use: ")


def test_a_later_launch_that_fails_is_an_error(tmp_path: Path) -> None:
    packaged, call = _one_packaged(tmp_path, FailingLauncher(successes=1))
    assert packaged.start(*call) is None
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NOT_SUPPORTED"):
        packaged.start(*call)


def test_an_invalid_archive_is_declined(built: tuple[Path, Path], tmp_path: Path) -> None:
    library, driver = built
    absent = open_packaged(library, tmp_path / "kernels_sm_90a.zip", 0, str(driver))
    assert absent == Unavailable("kernels_sm_90a.zip is not installed")


def test_only_the_compiler_imports_triton_directly() -> None:
    """Files with kernels import it from `language`, because Triton may be absent."""
    folder = _SOURCES.parent / "kernels"
    importing = {
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"^\s*(import|from) triton\b", path.read_text(), re.MULTILINE)
    }
    assert importing == {"ahead_of_time.py", "language.py", "package.py"}
