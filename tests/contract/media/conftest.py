"""A small multimodal model for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints.small_llava import write_small_llava


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small random LLaVA."""
    return write_small_llava(tmp_path_factory.mktemp("llava"))
