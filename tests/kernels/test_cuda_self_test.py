"""The self-test of the CUDA library rejects wrong kernels: over the emulated library, behind
kernels that are wrong on purpose."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_cuda import emulated_library

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.cuda import find_library, open_library, self_test
from penstock.kernels.cuda.library import Library
from penstock.kernels.cuda.ops import register
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine

# One writes nothing, one fails, one ends its process, one never ends.
_WRONG = """
#include <stdlib.h>
int penstock_cuda_rms_norm(void) { return 0; }
int penstock_cuda_linear(void) { return -1; }
int penstock_cuda_sample(void) { exit(3); }
int penstock_cuda_prefill_attention(void) { for (;;) ; }
"""


@pytest.fixture(scope="module")
def wrong(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library in which these kernels replace those of the emulated one."""
    right = emulated_library(request.config)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "wrong.c").write_text(_WRONG)
    command = [compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", str(folder / "wrong.so")]
    subprocess.run([*command, str(folder / "wrong.c"), str(right)], check=True)
    return folder / "wrong.so"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of verdicts."""
    return tmp_path_factory.mktemp("verdicts") / "kept"


@pytest.fixture(scope="module")
def verdict(wrong: Path, verdicts: Path) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(self_test, "KERNELS", ("rms_norm", "linear", "sample", "rope_cache"))
        return self_test.rejected_kernels(wrong, "cpu", verdicts)


def test_wrong_failing_and_crashing_kernels_are_rejected(
    verdict: dict[str, str],
) -> None:
    assert verdict == {
        "rms_norm": "rms_norm T2-W1536: 1 of its results are wrong",
        "linear": "linear bf16-T1-C576-N30: linear: extents that the kernel does not support",
        "sample": "the process that tested it ended with 3",
    }


def test_kernel_replaced_by_another_is_not_accepted(
    request: pytest.FixtureRequest,
) -> None:
    right = emulated_library(request.config)
    command = [sys.executable, "-m", "penstock.kernels.cuda.self_test_child", str(right), "cpu"]
    output = subprocess.run(
        [*command, "linear,rms_norm", "linear"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "linear linear bf16-T1-C576-N30: another kernel computed it" in output
    assert "rms_norm " in output


def test_kernel_that_does_not_end_is_rejected(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(self_test, "KERNELS", ("prefill_attention",))
    monkeypatch.setattr(self_test, "TIMEOUT_S", 2.0)
    assert self_test.rejected_kernels(wrong, "cpu") == {
        "prefill_attention": "it did not end within 2 s"
    }


# Is slow to start, and slow for each kernel, but within every deadline.
_SLOW_CHILD = """#!{python}
import sys, time
time.sleep(0.6)
print("a line of a library", flush=True)
print("started", flush=True)
for name in sys.argv[5].split(","):
    time.sleep(0.6)
    print(name, "", flush=True)
"""


def fake_library(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Return a library that an executable script pretends to test."""
    child, library = folder / "child", folder / "library.so"
    child.write_text(script)
    child.chmod(0o700)
    library.write_bytes(b"")
    monkeypatch.setattr(self_test.sys, "executable", str(child))
    return library


def test_each_kernel_has_a_deadline_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fake_library(tmp_path, monkeypatch, _SLOW_CHILD.format(python=sys.executable))
    monkeypatch.setattr(self_test, "TIMEOUT_S", 2.0)
    assert self_test.rejected_kernels(library, "cpu", tmp_path / "kept") == {}
    assert list((tmp_path / "kept").glob("*.json"))


def test_last_error_line_of_a_child_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fake_library(
        tmp_path,
        monkeypatch,
        "#!/bin/sh\necho started\necho 'Traceback\nKeyError: 1' >&2\nexit 4\n",
    )
    monkeypatch.setattr(self_test, "KERNELS", ("rms_norm",))
    assert self_test.rejected_kernels(library, "cpu") == {
        "rms_norm": "the process that tested it ended with 4: KeyError: 1"
    }


def test_no_kernel_is_blamed_for_a_process_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fake_library(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(self_test, "START_TIMEOUT_S", 0.2)
    verdict = self_test.rejected_kernels(library, "cpu", tmp_path / "kept")
    assert list(verdict) == list(self_test.KERNELS)
    assert all("not tested: its process did not start" in why for why in verdict.values())
    assert not (tmp_path / "kept").exists()


def test_kernels_left_when_time_is_up_are_rejected_but_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "KERNELS", ("rms_norm", "linear", "sample"))
    monkeypatch.setattr(self_test, "TOTAL_S", -1.0)
    library = tmp_path / "library.so"
    library.write_bytes(b"")
    verdict = self_test.rejected_kernels(library, "cpu", tmp_path / "kept")
    assert all("not tested: the kernels before it took" in why for why in verdict.values())
    assert not (tmp_path / "kept").exists()


def test_only_the_kernel_that_breaks_the_device_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fake child answers: no emulated kernel makes a device unusable."""
    lost = "linear bf16-T1-C576-N30: an illegal memory access was encountered"
    given = [
        ({"rms_norm": "", "linear": lost}, ""),
        ({}, ""),  # before its first answer
        ({"sample": ""}, "the process that tested it ended with 0"),
    ]
    asked: list[list[str]] = []

    def answers(
        library: Path, device: str, names: list[str], without: list[str]
    ) -> tuple[dict[str, str], str]:
        asked.append(list(names))
        return given[len(asked) - 1]

    monkeypatch.setattr(self_test, "KERNELS", ("rms_norm", "linear", "rope_cache", "sample"))
    monkeypatch.setattr(self_test, "_run_child", answers)
    assert self_test.rejected_kernels(Path(__file__), "cpu") == {
        "linear": lost,
        "rope_cache": "its process lost the device",
    }
    assert asked == [
        ["rms_norm", "linear", "rope_cache", "sample"],
        ["rope_cache", "sample"],
        ["sample"],
    ]


def test_rejected_kernels_are_served_by_triton_with_a_reason(
    wrong: Path, verdict: dict[str, str]
) -> None:
    library = open_library(wrong)
    assert isinstance(library, Library)
    products = dict.fromkeys(("linear_float8", "staged_linear"), verdict["linear"])
    register(library, verdict | products)
    machine = Machine("cpu", interpreted=True)
    table = KernelRegistry(all_ops(), machine, frozenset({"cuda", "triton", "reference"}))
    register(find_library(None))
    served = {name: table[name].name for name in ("rms_norm", "linear", "sample", "rope_cache")}
    triton = dict.fromkeys(("rms_norm", "linear", "sample"), "triton")
    assert served == triton | {"rope_cache": "cuda"}
    assert table["attention"].name == "cuda"  # for short chunks still
    (line,) = [line for line in table.explain() if line.startswith("linear:")]
    assert verdict["linear"] in line


def test_kept_verdict_is_used_without_a_new_test(
    wrong: Path,
    verdicts: Path,
    verdict: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(self_test, "_run_self_test", pytest.fail)
    with caplog.at_level(logging.WARNING):
        assert self_test.rejected_kernels(wrong, "cpu", verdicts) == verdict
    assert f"the CUDA library's linear is not used: {verdict['linear']}" in caplog.text


def test_untestable_library_is_rejected_but_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(self_test, "KERNELS", ("rms_norm",))
    library = tmp_path / "library.so"
    library.write_bytes(b"no library")
    verdict = self_test.rejected_kernels(library, "cpu", tmp_path)
    assert list(verdict) == ["rms_norm"]
    assert "ended with 1: the CUDA library cannot be loaded" in verdict["rms_norm"]
    assert not list(tmp_path.glob("*.json"))
