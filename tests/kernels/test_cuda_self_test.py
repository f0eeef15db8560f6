"""What the self_test of the CUDA library's kernels declines, over the emulated library, with kernels in
front of it that are wrong on purpose."""

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

# Writes nothing, fails, ends its process, never ends.
_WRONG = """
#include <stdlib.h>
int penstock_cuda_rms_norm(void) { return 0; }
int penstock_cuda_linear(void) { return -1; }
int penstock_cuda_sample(void) { exit(3); }
int penstock_cuda_prefill_attention(void) { for (;;) ; }
"""


@pytest.fixture(scope="module")
def wrong(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of which only the other kernels are the emulated one's."""
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
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where verdicts are kept."""
    return tmp_path_factory.mktemp("trials") / "kept"


@pytest.fixture(scope="module")
def verdict(wrong: Path, trials: Path) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(self_test, "KERNELS", ("rms_norm", "linear", "sample", "rope_cache"))
        return self_test.rejected_kernels(wrong, "cpu", trials)


def test_what_computes_wrongly_fails_or_ends_the_process_is_declined(
    verdict: dict[str, str],
) -> None:
    assert verdict == {
        "rms_norm": "rms_norm T2-W1536: 1 of its results are wrong",
        "linear": "linear bf16-T1-K576-N30: linear: extents that the kernel does not serve",
        "sample": "the process that tested it ended with 3",
    }


def test_a_kernel_that_another_stands_in_for_is_not_shown_to_be_right(
    request: pytest.FixtureRequest,
) -> None:
    right = emulated_library(request.config)
    command = [sys.executable, "-m", "penstock.kernels.cuda.self_test_child", str(right), "cpu"]
    said = subprocess.run(
        [*command, "linear,rms_norm", "linear"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "linear linear bf16-T1-K576-N30: another kernel computed it" in said
    assert "rms_norm " in said


def test_what_does_not_end_is_declined(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(self_test, "KERNELS", ("prefill_attention",))
    monkeypatch.setattr(self_test, "TIMEOUT_S", 2.0)
    assert self_test.rejected_kernels(wrong, "cpu") == {
        "prefill_attention": "it did not end within 2 s"
    }


# Takes its time to start, and for each kernel, but less than a deadline for any of them.
_SLOW_JUDGE = """#!{python}
import sys, time
time.sleep(0.6)
print("a line of a library", flush=True)
print("started", flush=True)
for name in sys.argv[5].split(","):
    time.sleep(0.6)
    print(name, "", flush=True)
"""


def tried_by(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A library, which an executable script is to judge."""
    judge, library = folder / "judge", folder / "library.so"
    judge.write_text(script)
    judge.chmod(0o700)
    library.write_bytes(b"")
    monkeypatch.setattr(self_test.sys, "executable", str(judge))
    return library


def test_each_kernel_has_a_deadline_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tried_by(tmp_path, monkeypatch, _SLOW_JUDGE.format(python=sys.executable))
    monkeypatch.setattr(self_test, "TIMEOUT_S", 2.0)
    assert self_test.rejected_kernels(library, "cpu", tmp_path / "kept") == {}
    assert list((tmp_path / "kept").glob("*.json"))


def test_what_a_process_said_before_it_ended_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tried_by(
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
    library = tried_by(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(self_test, "START_TIMEOUT_S", 0.2)
    verdict = self_test.rejected_kernels(library, "cpu", tmp_path / "kept")
    assert list(verdict) == list(self_test.KERNELS)
    assert all("not tested: its process did not start" in why for why in verdict.values())
    assert not (tmp_path / "kept").exists()


def test_when_the_trial_has_taken_too_long_the_rest_is_declined_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "KERNELS", ("rms_norm", "linear", "sample"))
    monkeypatch.setattr(self_test, "TOTAL_S", -1.0)
    library = tmp_path / "library.so"
    library.write_bytes(b"")
    verdict = self_test.rejected_kernels(library, "cpu", tmp_path / "kept")
    assert all("not tested: the kernels before it took" in why for why in verdict.values())
    assert not (tmp_path / "kept").exists()


def test_what_takes_the_device_from_its_process_is_declined_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Said by a judge that is given here: no emulated kernel loses a device."""
    lost = "linear bf16-T1-K576-N30: an illegal memory access was encountered"
    said = [
        ({"rms_norm": "", "linear": lost}, ""),
        ({}, ""),  # before it could say a word
        ({"sample": ""}, "the process that tested it ended with 0"),
    ]
    asked: list[list[str]] = []

    def answers(
        library: Path, device: str, names: list[str], without: list[str]
    ) -> tuple[dict[str, str], str]:
        asked.append(list(names))
        return said[len(asked) - 1]

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


def test_what_is_declined_is_served_by_triton_and_says_why(
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
    assert table["attention"].name == "cuda"  # of short chunks still
    (line,) = [line for line in table.explain() if line.startswith("linear:")]
    assert verdict["linear"] in line


def test_a_verdict_that_is_kept_is_not_asked_for_again(
    wrong: Path,
    trials: Path,
    verdict: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(self_test, "_run_self_test", pytest.fail)
    with caplog.at_level(logging.WARNING):
        assert self_test.rejected_kernels(wrong, "cpu", trials) == verdict
    assert f"the CUDA library's linear is not used: {verdict['linear']}" in caplog.text


def test_a_library_that_cannot_be_tried_is_declined_for_now(
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
