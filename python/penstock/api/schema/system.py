"""The answer of the system diagnosis (`doctor`)."""

from __future__ import annotations

from msgspec import Struct

from penstock.system.checks import Check
from penstock.system.facts import SystemInfo


class Diagnosis(Struct, frozen=True):
    """The system's properties and the results of all checks. The request succeeds even if checks
    fail; each check has its own status."""

    system: SystemInfo
    checks: list[Check]
