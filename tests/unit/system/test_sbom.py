"""The bill of materials of an installation."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    command = [sys.executable, "-m", "penstock.system.sbom"]
    run = subprocess.run(command, capture_output=True, check=True, timeout=60)
    document: dict[str, Any] = json.loads(run.stdout)
    return document


def names(bill: dict[str, Any]) -> set[str]:
    return {one["name"] for one in bill["components"]}


def test_everything_that_a_server_needs_is_in_the_bill(bill: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {
        text.split(";")[0].split("[")[0].split(">")[0].strip()
        for text in project["dependencies"]
        if "python_version" not in text
    }
    assert len(direct) > 15 and direct <= names(bill)
    assert {"h11", "markupsafe"} <= names(bill)  # what those need


def test_what_no_server_needs_is_not(bill: dict[str, Any]) -> None:
    assert not names(bill) & {"torch", "pytest", "transformers", "mypy", "psycopg", "penstock"}


def test_the_bill_names_what_is_installed_and_what_needs_what(bill: dict[str, Any]) -> None:
    """As CycloneDX 1.6 has it."""
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    for one in bill["components"]:
        assert one["version"] == version(one["name"])
        assert one["purl"] == one["bom-ref"] == f"pkg:pypi/{one['name']}@{one['version']}"
    root = bill["metadata"]["component"]["bom-ref"]
    refs = {root, *(one["bom-ref"] for one in bill["components"])}
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert set(needs) == refs
    assert {ref for several in needs.values() for ref in several} == refs - {root}
