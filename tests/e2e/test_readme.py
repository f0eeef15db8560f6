"""The README's commands for the default model, run as they are written."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import RunningServer

README = Path(__file__).resolve().parents[2] / "README.md"
# Commands that need other models or the user's own adapters, and those that start servers.
OTHERS = re.compile(r"^(make|penstock|git|export) ", re.MULTILINE)
BLOCKS = [
    "\n".join(line[4:] for line in block.splitlines())
    for block in re.findall(r"(?:^    .*\n)+", README.read_text(), re.MULTILINE)
]
COMMANDS = [block for block in BLOCKS if "curl " in block and not OTHERS.search(block)]
TOOLS = "code_interpreter"  # in commands that need a server with tools


@pytest.mark.parametrize(
    "block", [b for b in COMMANDS if TOOLS not in b], ids=lambda block: block.split("\n")[0][:60]
)
def test_a_command_works_as_written(server: RunningServer, tmp_path: Path, block: str) -> None:
    run_block(block, server, tmp_path)


def test_the_command_with_tools_works_as_written(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    (block,) = (block for block in COMMANDS if TOOLS in block)
    run_block(block, start_server("--enable-code-execution"), tmp_path)


def run_block(block: str, server: RunningServer, tmp_path: Path) -> None:
    """Run a block of the README against a server. Fails if a command or an answer is an error."""
    script = block.replace("localhost:1234", server.url.removeprefix("http://"))
    script = script.replace("curl ", "curl -sS --fail-with-body -m 120 ")
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"error":{' not in done.stdout
