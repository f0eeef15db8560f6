"""The answer of the doctor."""

from __future__ import annotations

from msgspec import Struct

from penstock.system.checks import Check
from penstock.system.facts import SystemInfo


class Diagnosis(Struct, frozen=True):
    """That the machine is in a bad way is a finding, not a failure of the request: the status of
    each check says it."""

    system: SystemInfo
    checks: list[Check]
