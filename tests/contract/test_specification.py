"""Every row of every table of the specification is held by a test: `specification.toml` says which.

It names a table's rows by their first cells, and tests by file and name: no two files of tests have
the same name. A row of a feature that is not there yet says `later` and why. `rows` of a table, and
`tables` and `rows` of them all, were counted in the specification, so that none is lost unnoticed.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SPECIFICATION = tomllib.loads((Path(__file__).parent / "specification.toml").read_text())
TABLES: dict[str, Any] = {name: t for name, t in SPECIFICATION.items() if isinstance(t, dict)}
FILES = {path.name: path for path in Path(__file__).resolve().parents[1].rglob("test_*.py")}


@cache
def functions_of(file: str) -> frozenset[str]:
    """What pytest would collect: `function` and `Class::method`. Nothing for an unknown file."""
    if file not in FILES:
        return frozenset()
    found = set()
    for node in ast.parse(FILES[file].read_text()).body:
        inside = isinstance(node, ast.ClassDef)
        for function in node.body if inside else [node]:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{node.name}::{function.name}" if inside else function.name
                found.add(name)
    return frozenset(name for name in found if "test_" in name)


def test_no_table_is_lost() -> None:
    assert len(TABLES) == SPECIFICATION["tables"]
    assert sum(table["rows"] for table in TABLES.values()) == SPECIFICATION["rows"]


@pytest.mark.parametrize("name", TABLES)
def test_no_row_is_lost(name: str) -> None:
    assert len(TABLES[name]["tests"]) == TABLES[name]["rows"]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_held_by_tests_that_exist(name: str) -> None:
    for row, tests in TABLES[name]["tests"].items():
        if isinstance(tests, dict):
            assert set(tests) == {"later"} and tests["later"], row
            continue
        assert tests, row
        for test in tests:
            file, _, function = test.partition("::")
            assert function in functions_of(file), f"{row}: there is no {test}"
