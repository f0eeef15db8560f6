"""The types of weights: their names, and the loss that docs/quantization.md states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings
from penstock.config.load_settings import load_engine
from penstock.config.weight_types import KNOWN
from penstock.tune.weight_types import (
    MEAN_KL,
    TRIED,
    is_accepted,
    quality_of,
    requested_type,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "quantization.md"


def test_the_types_are_the_values_of_the_setting() -> None:
    assert set(TRIED) <= set(KNOWN)
    for name in KNOWN:
        assert load_engine({"quantization": name}, file=None).quantization == name


def test_the_measured_loss_is_that_of_the_documentation() -> None:
    table = PAGE.read_text().partition("\n## Loss\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\w-]+) \|", table, re.MULTILINE)
    assert {name: float(nats) for name, nats, _ in rows} == dict(MEAN_KL)
    for name, _, label in rows:
        assert quality_of(name, 1.0)[0] == label


def test_stored_weights_are_the_baseline() -> None:
    assert quality_of(None, 2.0) == ("baseline", None)
    assert all(is_accepted("baseline", profile) for profile in ("quality", "balanced", "fast"))


@pytest.mark.parametrize(
    ("bits", "label"),
    [(8.5, "near-lossless"), (4.5, "good"), (3.5, "acceptable"), (2.6, "degraded")],
)
def test_a_type_without_a_measurement_is_judged_by_its_bits(bits: float, label: str) -> None:
    assert quality_of("unmeasured", bits) == (label, None)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("none", None), ("int8", "int8"), (" INT4 ", "int4"), ("8", "Q8_0"), ("q4k", "Q4_K")],
)
def test_a_request_names_a_type(name: str, wanted: str | None) -> None:
    assert requested_type(name) == wanted


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest) as error:
        requested_type("q9_z")
    assert error.value.field == "requested_isq" and error.value.status == 400
    assert all(name in error.value.message for name in KNOWN)
    assert EngineSettings().quantization is None
