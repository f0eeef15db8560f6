"""Measured figures with the values that they must reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.harness.load_client import percentile


class Figure(msgspec.Struct, frozen=True):
    """One measured value. `must`, `goal`: the highest acceptable and the desired value."""

    name: str
    value: float
    unit: str
    must: float
    goal: float

    @property
    def verdict(self) -> str:
        """`goal`, `must` or `missed`: the better of the two that the value reaches."""
        if self.value <= self.goal:
            return "goal"
        return "must" if self.value <= self.must else "missed"


class Section(msgspec.Struct, frozen=True):
    """The result of one subcommand. `details`: JSON values that explain the figures."""

    figures: tuple[Figure, ...]
    details: dict[str, Any] = {}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return count, minimum, median and p99 of times in milliseconds."""
    return {
        "count": len(values),
        "least": round(min(values), 2),
        "p50": round(percentile(values, 0.5), 2),
        "p99": round(percentile(values, 0.99), 2),
    }


def table(sections: dict[str, Section]) -> str:
    """Return all figures as a Markdown table."""
    lines = ["| figure | measured | must | goal | reaches |", "|---|---|---|---|---|"]
    for section in sections.values():
        for figure in section.figures:
            lines.append(
                f"| {figure.name} | {figure.value:,.6g} {figure.unit} | {figure.must:g} |"
                f" {figure.goal:g} | {figure.verdict} |"
            )
    return "\n".join(lines)
