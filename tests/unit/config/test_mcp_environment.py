"""The variable MCP_CONFIG_PATH."""

from __future__ import annotations

from pathlib import Path

from penstock.config import read_environment
from penstock.config.load_settings import load_serving


def test_the_variable_is_the_default_of_the_option(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a.json", tmp_path / "b.json"
    for path in (ours, theirs):
        path.write_text('{"servers": []}')
    environment = read_environment({"MCP_CONFIG_PATH": str(ours)})
    engine = {"model": "m"}
    chosen = load_serving(engine, {}, {}, file=None, environment=environment)
    assert chosen.server.agent.mcp_config == str(ours)
    options = {"mcp_config": str(theirs)}
    chosen = load_serving(engine, options, {}, file=None, environment=environment)
    assert chosen.server.agent.mcp_config == str(theirs)
    assert read_environment({}).mcp_config is None
