"""`penstock run` in a pipe writes only answers to standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.server_process import write_servable_model

pytestmark = pytest.mark.slow


def test_banner_and_prompts_go_to_standard_error(tmp_path: Path) -> None:
    model = write_servable_model(tmp_path / "small")

    def run(*options: str, given: str) -> subprocess.CompletedProcess[str]:
        options = ("--threads", "1", "--temperature", "0", "--max-tokens", "8", *options)
        return subprocess.run(
            [sys.executable, "-m", "penstock", "run", model, *options],
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            env=os.environ | {"PENSTOCK_HOME": str(tmp_path), "COLUMNS": "200"},
        )

    once = run("-i", "hi", given="")
    talk = run(given="hi\n/clear\nhi\n")
    assert once.stdout and talk.stdout == once.stdout * 2
    assert "/help lists the commands" in talk.stderr and "Conversation cleared." in talk.stderr
    assert "> " not in talk.stderr
