"""Fixtures that every suite may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.database_fixtures import (
    each_database,
    postgres_cluster,
    postgres_schemas,
    postgres_url,
)

__all__ = ["each_database", "postgres_cluster", "postgres_schemas", "postgres_url"]

# No example of a property test has a time limit, neither its run nor its drawing: tests judge
# behaviour, and the machine may be busy.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--weights-dir",
        default=None,
        help="folder with further models (see bench/peers.md); tests that need one skip without it",
    )
    parser.addoption(
        "--described-examples",
        type=int,
        default=15,
        help="requests of each kind that the served description is tried with",
    )


@pytest.fixture(scope="session")
def weights_dir(request: pytest.FixtureRequest) -> Path:
    """The folder given by --weights-dir; skips the test where none is given."""
    value = request.config.getoption("--weights-dir")
    if value is None:
        pytest.skip("needs --weights-dir")
    return Path(str(value))


@pytest.fixture(scope="session", autouse=True)
def home_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """PENSTOCK_HOME of every process that a test starts, unless it names its own: what is kept
    there goes with the run. Models are those of the operator's home."""
    from penstock.config import read_environment

    models = read_environment().home / "models"
    models.mkdir(parents=True, exist_ok=True)
    home = tmp_path_factory.mktemp("home")
    (home / "models").symlink_to(models)
    before = os.environ.get("PENSTOCK_HOME")
    os.environ["PENSTOCK_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["PENSTOCK_HOME"]
    else:
        os.environ["PENSTOCK_HOME"] = before
