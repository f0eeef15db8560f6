"""The default model, downloaded into the user's own cache on first use."""

from __future__ import annotations

import pytest

from penstock.base.errors import ModelError
from penstock.config.environment import read_environment
from penstock.models.hub.catalogue import DEFAULT_MODEL
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import resolve_model


@pytest.fixture(scope="session")
def default_model() -> ModelFiles:
    """The default model; skips the test if no source answers."""
    try:
        return resolve_model(DEFAULT_MODEL, read_environment().home)
    except ModelError as error:
        pytest.skip(f"the default model cannot be fetched: {error}")
