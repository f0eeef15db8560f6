"""Imports single modules of packages that cannot be imported as a whole."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest


def import_bare(name: str, given: Mapping[str, Any] | None = None) -> Any:
    """Import a module without the `__init__` files of the packages around it, which import data
    sets, kernels and compilers. Skip the test if the package is not installed.

    `given`: attributes that the module imports from packages, by their full names; None as a value
    names a package whose modules alone are needed.
    """
    packages: dict[str, ModuleType] = {}
    for package in _parents(name):
        packages[package] = _bare(package)
    for attribute, value in (given or {}).items():
        owner, _, last = attribute.rpartition(".")
        for package in _parents(attribute) + ([attribute] if value is None else []):
            packages.setdefault(package, _bare(package))
        if value is not None:
            setattr(packages[owner], last, value)
    with patch.dict(sys.modules, packages):
        return importlib.import_module(name)


def _parents(name: str) -> list[str]:
    """Return the names of the packages around a module, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _bare(package: str) -> ModuleType:
    """Return a package with nothing in it. Its modules can be imported from their files."""
    top, *inner = package.split(".")
    found = importlib.util.find_spec(top)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"needs the package {top}")
    module = ModuleType(package)
    roots = [Path(root) for root in found.submodule_search_locations]
    module.__path__ = [str(root.joinpath(*inner)) for root in roots]
    return module
