"""Stores behave identically in every database."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _each_database(each_database: None) -> None:
    """Every test of this folder runs over SQLite and over PostgreSQL."""
