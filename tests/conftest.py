"""Fixtures for all test suites."""

from __future__ import annotations

import gc
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

# Test processes share the cores, so torch and its libraries compute in one thread in each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Property tests have no time limits, neither for an example nor for its generation: tests check
# behaviour, and the machine may be busy.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


# The files that take longest, longest first. They are collected first, so that no test process is
# left with one of them while the others have nothing to do.
LONGEST = (
    "kernels/test_triton.py",
    "kernels/test_cuda_emulated.py",
    "engine/gpu/test_device_layers.py",
    "kernels/test_ops.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: place.get(item.path.relative_to(tests).as_posix(), len(place)))


def pytest_collection_finish() -> None:
    """Exempt all that is imported and collected, millions of objects, from later collections of
    garbage."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--weights-dir",
        default=None,
        help="folder with more models (bench/peers.md); tests that need one skip without it",
    )
    parser.addoption(
        "--screenshots",
        default=None,
        help="folder for the pictures that the tests of the web page take",
    )
    parser.addoption(
        "--described-examples",
        type=int,
        default=15,
        help="examples per operation of the OpenAPI document in the fuzzing tests",
    )


@pytest.fixture(scope="session")
def weights_dir(request: pytest.FixtureRequest) -> Path:
    """Return the folder given by --weights-dir; skip the test if none is given."""
    value = request.config.getoption("--weights-dir")
    if value is None:
        pytest.skip("needs --weights-dir")
    return Path(str(value))


@pytest.fixture(scope="session", autouse=True)
def home_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set PENSTOCK_HOME for every process that a test starts, unless it sets its own. The folder is
    deleted after the run. Models are taken from the operator's home."""
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
