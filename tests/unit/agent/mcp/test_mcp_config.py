"""The configuration file of MCP servers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.agent.mcp import McpConfig, parse_mcp_config, read_mcp_config
from penstock.agent.mcp.config import HttpSource, ProcessSource, SseSource
from penstock.config import SettingsError


def parsed(file: Any) -> McpConfig:
    return parse_mcp_config(msgspec.json.encode(file))


def entry(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "source": {"type": "Http", "url": "http://h/mcp"}, **fields}


def test_a_list_of_servers_with_all_keys() -> None:
    config = parsed(
        {
            "servers": [
                entry(
                    id="1", tool_prefix="web", bearer_token="t", resources=[],
                    source={
                        "type": "Http", "url": "https://h:1/mcp", "timeout_secs": 5,
                        "headers": {"X-Team": "a"},
                    },
                ),
                {
                    "name": "b c!", "enabled": True,
                    "source": {
                        "type": "Process", "command": "npx", "args": ["-y", "s"],
                        "work_dir": "/w", "env": {"K": "v"},
                    },
                },
                entry(name="old", source={"type": "Sse", "url": "http://h/sse"}),
                entry(name="off", enabled=False),
            ],
            "auto_register_tools": False,
            "tool_timeout_secs": 7,
            "max_concurrent_calls": 3,
        }
    )  # fmt: skip
    web, process, old = config.servers
    assert web.source == HttpSource("https://h:1/mcp", 5, {"X-Team": "a"})
    assert (web.prefix, web.timeout_s, web.bearer_token) == ("web", 5, "t")
    assert process.source == ProcessSource("npx", ("-y", "s"), "/w", {"K": "v"})
    assert (process.name, process.prefix, process.timeout_s) == ("b c!", "b_c", 7)
    assert old.source == SseSource("http://h/sse")
    assert not config.auto_register_tools and config.max_concurrent_calls == 3


def test_defaults() -> None:
    config = parsed({"servers": [entry()]})
    assert config.servers[0].timeout_s == 30
    assert config.auto_register_tools and config.max_concurrent_calls == 10


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_named_servers_of_other_programs(key: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = parsed(
        {
            key: {
                "files": {"command": "npx", "args": ["s"], "env": {"K": "v"}, "cwd": "/w"},
                "typed": {"type": "stdio", "command": "x"},
                "web": {"url": "http://h/mcp", "headers": {"A": "b"}},
                "http": {"type": "http", "url": "http://h/mcp", "alwaysAllow": ["x"]},
                "sse": {"type": "sse", "url": "http://h/sse"},
                "off": {"command": "x", "disabled": True},
            },
            "globalShortcut": "",
        }
    )
    assert [server.name for server in config.servers] == ["files", "typed", "web", "http", "sse"]
    assert config.servers[0].source == ProcessSource("npx", ("s",), "/w", {"K": "v"})
    assert config.servers[2].source == HttpSource("http://h/mcp", None, {"A": "b"})
    assert config.servers[4].source == SseSource("http://h/sse")
    assert f"`{key}.http`: ignored keys: alwaysAllow" in caplog.text


def test_resources_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert len(parsed({"servers": [entry(resources=["a://*"])]}).servers) == 1
    assert "`servers[0].resources` is ignored" in caplog.text


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ([], "is not a JSON object"),
        ({}, "`servers`: is missing"),
        ({"servers": 1}, "`servers`: must be an object, name -> server or a list"),
        ({"mcpServers": []}, "`mcpServers`: must be an object, name -> server"),
        ({"servers": [], "mcpServers": {}}, "`mcpServers`: cannot be combined with `servers`"),
        ({"servers": [], "timeout": 1}, "`timeout`: is not a known key"),
        ({"servers": [], "tool_timeout_secs": 0}, "`tool_timeout_secs`: must be greater than 0"),
        ({"servers": [], "max_concurrent_calls": 0}, "`max_concurrent_calls`: must be at least 1"),
        ({"servers": [], "tool_timeout_secs": "x"}, "`tool_timeout_secs`: Expected `float`"),
        ({"servers": [entry(), 1]}, "`servers[1]`: Expected `object`, got `int`"),
        ({"servers": [{"name": "a"}]}, "`servers[0]`: Object missing required field `source`"),
        ({"servers": [entry(tools=1)]}, "`servers[0]`: Object contains unknown field `tools`"),
        ({"servers": [entry(source={"type": "Http"})]}, "`servers[0].source`: Object missing req"),
        (
            {"servers": [entry(source={"type": "Tcp"})]},
            "`servers[0].source.type`: Invalid value 'Tcp'; supported are \"Http\", \"Sse\"",
        ),
        (
            {"servers": [entry(source={"type": "WebSocket", "url": "ws://h"})]},
            "`servers[0].source.type`: WebSocket is not supported",
        ),
        (
            {"servers": [entry(source={"type": "Http", "url": "file:///x"})]},
            "`servers[0].source.url`: 'file:///x' is not an http:// or https:// URL",
        ),
        (
            {"servers": [entry(source={"type": "Http", "url": "http://h", "timeout_secs": -1})]},
            "`servers[0].source.timeout_secs`: must be greater than 0",
        ),
        (
            {"servers": [entry(source={"type": "Process", "command": ""})]},
            "`servers[0].source.command`: is empty",
        ),
        ({"servers": [entry(tool_prefix="a b")]}, "`servers[0].tool_prefix`: 'a b' is not 1 to 32"),
        (
            {"servers": [entry(tool_prefix="service_x")]},
            "`servers[0].tool_prefix`: the prefix 'service_x' is reserved",
        ),
        ({"servers": [entry(name="!")]}, "`servers[0].name`: '' is not 1 to 32"),
        ({"servers": [entry(), entry()]}, "`servers`: two servers have the name 'a'"),
        (
            {"servers": [entry(name="x y"), entry(name="x.y")]},
            "two servers have the prefix 'x_y'; set `tool_prefix` of one of them",
        ),
        ({"servers": [entry(bearer_token="\u00e9")]}, "`servers[0].bearer_token`: must be print"),
        ({"mcpServers": {"a": {}}}, "`mcpServers.a`: must have either `command` or `url`"),
        (
            {"mcpServers": {"a": {"url": "ws://h", "type": "ws"}}},
            "`mcpServers.a.type`: 'ws' is not supported; must be \"http\" or \"sse\"",
        ),
        (
            {"mcpServers": {"a": {"url": "http://h", "headers": {"X": "a\r\nb"}}}},
            "`mcpServers.a.headers.X`: must be printable ASCII",
        ),
        (
            {"mcpServers": {"a": {"command": "x", "args": [1]}}},
            "`mcpServers.a.args[0]`: Expected `str`, got `int`",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_an_error_that_names_the_key(file: Any, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parsed(file)
    assert message in str(error.value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_mcp_config(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SettingsError, match=r"bad\.json: is not a JSON object"):
        read_mcp_config(tmp_path / "bad.json")
