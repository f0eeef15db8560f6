"""`penstock mcp list`, as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.servers.mcp_servers import process_entry


def mcp_list(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "mcp", "list", *arguments],
        capture_output=True,
        text=True,
    )


def config_file(folder: Path, entries: dict[str, dict[str, Any]]) -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries, "tool_timeout_secs": 20}))
    return str(path)


def test_servers_and_their_tools_are_shown(tmp_path: Path) -> None:
    done = mcp_list("--mcp-config", config_file(tmp_path, {"good": process_entry("honest")}))
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout and "ok" in done.stdout and "add" in done.stdout


def test_a_failed_server_gives_status_1_and_its_reason(tmp_path: Path) -> None:
    entries = {"good": process_entry("honest"), "bad": process_entry("broken")}
    done = mcp_list("--json", "--mcp-config", config_file(tmp_path, entries))
    assert done.returncode == 1
    good, bad = json.loads(done.stdout)["servers"]
    assert good["connected"] and "add" in good["tools"] and good["last_error"] is None
    assert not bad["connected"] and bad["tools"] == []
    assert "cannot find my configuration" in bad["last_error"]


def test_a_wrong_file_is_one_line_on_standard_error(tmp_path: Path) -> None:
    done = mcp_list("--mcp-config", config_file(tmp_path, {"bad": {}}))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.strip().endswith("`mcpServers.bad`: must have either `command` or `url`")
    assert done.stderr.count("\n") == 1


def test_a_missing_option_is_named() -> None:
    done = mcp_list()
    assert done.returncode == 1 and "--mcp-config" in done.stderr
