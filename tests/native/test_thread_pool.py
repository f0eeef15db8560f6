"""The thread pool from Python; thread_pool_test.cc tests its inside in C++."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from decoder_step import PROMPT, make_model, record, run
from native_isas import native

from penstock.config.validation import ENGINE_RANGES
from penstock.kernels.native import plan_arguments


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_number_of_threads_is_checked(threads: int) -> None:
    with pytest.raises(ValueError, match=r"threads: must be in 1..1024"):
        native.ThreadPool(threads)


def test_settings_allow_as_many_threads_as_a_pool_takes() -> None:
    most = ENGINE_RANGES["threads"][1]
    with pytest.raises(ValueError, match=rf"must be in 1\.\.{most}, got {most + 1}"):
        native.ThreadPool(most + 1)


def test_unknown_isa_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown ISA: avx3 \(auto, scalar, neon, avx2"):
        native.KernelSet("avx3")


def test_isa_that_the_cpu_lacks_names_the_missing_feature() -> None:
    real = {"neon", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"}
    lacking = real - set(native.supported_isas())
    if not lacking:
        pytest.skip("this machine has every ISA")
    for isa in lacking:
        with pytest.raises(
            ValueError,
            match=f"ISA {isa} cannot run here: it needs (avx|amx|fma|f16c|bmi|asimd|an )",
        ):
            native.KernelSet(isa)


def test_auto_is_a_real_isa() -> None:
    isa = native.KernelSet("auto").isa
    assert isa in native.supported_isas() and not isa.startswith("emulated")


def test_two_threads_may_run_one_plan() -> None:
    plan = record(make_model())
    expected = run(plan, PROMPT)
    errors: list[BaseException] = []

    def repeat() -> None:
        try:
            for _ in range(50):
                plan.run(*arguments)
        except BaseException as error:
            errors.append(error)

    arguments = plan_arguments(PROMPT)
    callers = [threading.Thread(target=repeat) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not errors
    np.testing.assert_array_equal(run(plan, PROMPT), expected)


def test_a_forked_child_computes_alone_and_exits() -> None:
    """The helper threads stay in the parent: the child's calls run on its one thread."""
    plan = record(make_model(threads=4))
    expected = run(plan, PROMPT)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if np.array_equal(run(plan, PROMPT), expected) else 2
            del plan
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
