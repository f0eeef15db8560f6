"""The choice of the device."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.runtime import device_choice as device
from penstock.runtime.device_choice import choose_device, driver_devices, rank_devices

DRIVER = """
int cuInit(unsigned flags) { return FAILS; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
"""


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver_devices", lambda: 2)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver_devices", lambda: 0)


def chosen(name: str, **options: object) -> str:
    return choose_device(EngineSettings(device=name, **options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("two_devices")
def test_auto_uses_a_gpu_if_there_is_one() -> None:
    assert chosen("auto") == chosen("cuda") == "cuda:0"
    assert chosen("cuda:1") == "cuda:1"
    assert chosen("cpu") == "cpu"
    assert (
        chosen("auto", kernel_backend="native")
        == chosen("auto", kernel_backend="reference")
        == "cpu"
    )


@pytest.mark.usefixtures("two_devices")
def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(ModelError, match=r"cuda:2, but the driver reports 2"):
        chosen("cuda:2")
    with pytest.raises(ModelError, match="kernels is native, which needs the CPU"):
        chosen("cuda", kernel_backend="native")


@pytest.mark.usefixtures("two_devices")
def test_triton_kernels_require_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("auto", kernel_backend="triton") == "cuda:0"
    with pytest.raises(ModelError, match="kernels is triton, which needs a GPU"):
        chosen("cpu", kernel_backend="triton")
    monkeypatch.setattr(device, "driver_devices", lambda: 0)
    with pytest.raises(ModelError, match="reports 0 CUDA devices"):
        chosen("auto", kernel_backend="triton")


@pytest.mark.usefixtures("no_device")
def test_without_a_gpu_auto_uses_the_cpu_and_cuda_is_refused() -> None:
    assert chosen("auto") == "cpu"
    with pytest.raises(ModelError, match="reports 0 CUDA devices"):
        chosen("cuda")


@pytest.mark.usefixtures("two_devices")
def test_without_torch_auto_uses_the_cpu_and_cuda_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert chosen("auto") == "cpu"
    with pytest.raises(ModelError, match="needs torch: pip install 'torch>="):
        chosen("cuda:0")


def devices(name: str, ranks: int) -> tuple[str, ...]:
    settings = EngineSettings(device=name, tensor_parallel_size=ranks)
    return rank_devices(settings, choose_device(settings))


@pytest.mark.usefixtures("two_devices")
def test_tensor_parallelism_uses_consecutive_devices_from_the_first() -> None:
    assert devices("auto", 2) == devices("cuda:0", 2) == ("cuda:0", "cuda:1")
    assert devices("cuda:1", 1) == ("cuda:1",)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(("name", "ranks"), [("auto", 3), ("cuda:1", 2)])
def test_too_many_tensor_parallel_devices_are_refused_with_both_numbers(
    name: str, ranks: int
) -> None:
    with pytest.raises(
        ModelError, match=f"tensor_parallel_size is {ranks}, .* reports 2 CUDA devices"
    ):
        devices(name, ranks)


@pytest.mark.usefixtures("two_devices")
def test_tensor_parallelism_on_a_cpu_is_refused() -> None:
    with pytest.raises(ModelError, match="where all threads share one model; it needs 2 GPUs"):
        devices("cpu", 2)


@pytest.mark.parametrize(("fails", "count"), [(0, 2), (100, 0)])
def test_the_driver_reports_the_number_of_devices(tmp_path: Path, fails: int, count: int) -> None:
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(DRIVER)
    command = [compiler, "-shared", "-fPIC", f"-DFAILS={fails}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    assert driver_devices(str(library)) == count


def test_without_a_driver_there_is_no_device() -> None:
    assert driver_devices("no-such-driver.so") == 0


def test_choosing_a_device_does_not_import_torch() -> None:
    code = (
        "import sys, penstock.runtime.device_choice as device;"
        "from penstock.config import EngineSettings;"
        "device.choose_device(EngineSettings());"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
