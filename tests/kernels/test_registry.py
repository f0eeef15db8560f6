"""The choice of the implementation that serves."""

from __future__ import annotations

import pytest

from penstock.kernels.registry import Impl, KernelRegistry, Machine, Op


def _op(name: str = "double") -> Op:
    return Op(
        name=name,
        signature="x float [T, W]; write out float [T, W]",
        reference=lambda x: x + x,
        cases=(),
        benchmarks=(),
        tolerance={},
        cost=lambda inputs: None,
        order=("fast", "plain", "reference"),
    )


def _impl(name, reason=None):
    return Impl(name, lambda x: 2 * x, lambda machine: reason)


def test_first_eligible_implementation_in_declared_order_serves():
    op = _op()
    op.register(_impl("plain"))
    op.register(_impl("fast"))
    assert KernelRegistry((op,), Machine("cpu"))["double"].name == "fast"


def test_ineligible_implementation_is_passed_over_with_its_reason():
    op = _op()
    op.register(_impl("fast", reason="needs a CUDA device"))
    registry = KernelRegistry((op,), Machine("cpu"))
    assert registry["double"].name == "reference"
    assert registry.explain() == [
        "double: reference; fast: needs a CUDA device; plain: not registered"
    ]


def test_eligibility_sees_the_machine():
    op = _op()
    needs_90 = Impl("fast", abs, lambda machine: None if machine.capability >= 90 else "needs 90")
    op.register(needs_90)
    assert KernelRegistry((op,), Machine("cuda", 90))["double"].name == "fast"
    assert KernelRegistry((op,), Machine("cuda", 80))["double"].name == "reference"


def test_names_restrict_the_choice():
    op = _op()
    op.register(_impl("fast"))
    registry = KernelRegistry((op,), Machine("cpu"), frozenset({"reference"}))
    assert registry["double"].call(4) == 8
    assert "fast: not asked for" in registry.explain()[0]


def test_op_without_an_eligible_implementation_is_refused_with_all_reasons():
    op = _op()
    op.register(_impl("fast", reason="too old"))
    with pytest.raises(LookupError, match=r"double.*fast: too old; plain: not registered"):
        KernelRegistry((op,), Machine("cpu"), frozenset({"fast", "plain"}))


def test_implementation_without_a_declared_rank_is_a_mistake():
    with pytest.raises(AssertionError, match="no rank"):
        _op().register(_impl("unheard-of"))
