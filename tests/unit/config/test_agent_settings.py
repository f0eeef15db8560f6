"""Options of server tools: their sources, switches and secrets, and errors that name the option."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config import (
    AgentSettings,
    SandboxSettings,
    SearchSettings,
    SettingsError,
    read_environment,
)
from penstock.config.agent_validation import AGENT_RANGES, SANDBOX_RANGES
from penstock.config.load_settings import load_agent, load_serving

FULL = """
[agent]
enable_all = true
agent_permission = "ask"
max_tool_rounds = 12
code_exec_timeout = 5
shell_timeout = 6
tool_dispatch_url = "https://tools.example/run"
tool_dispatch_secret = "hush"
tool_dispatch_timeout = 7
session_idle_s = 8
[agent.search]
engine = "searxng"
url = "http://127.0.0.1:8888/searx"
[sandbox]
mode = "on"
profile = "developer"
network = "none"
max_memory_mb = 512
"""
SEARXNG = SearchSettings(engine="searxng", url="http://127.0.0.1:8888/searx")
SANDBOX = SandboxSettings(mode="on", profile="developer", network="none", max_memory_mb=512)
LOADED = AgentSettings(
    enable_search=True,
    enable_code_execution=True,
    enable_shell=True,
    agent_permission="ask",
    max_tool_rounds=12,
    code_exec_timeout=5,
    shell_timeout=6,
    tool_dispatch_url="https://tools.example/run",
    tool_dispatch_secret="hush",
    tool_dispatch_timeout=7,
    session_idle_s=8,
    search=SEARXNG,
    sandbox=SANDBOX,
)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a settings file."""

    def write(text):
        file = tmp_path / "penstock.toml"
        file.write_text(text)
        return file

    return write


def serving(file=None, **options):
    environment = read_environment({"HOME": "/h"})
    return load_serving({}, options, {}, file=file, environment=environment).server


def test_the_tables_set_the_agent_of_the_server(written):
    file = written(FULL)
    assert serving(file).agent == load_agent({}, file=file) == LOADED


def test_options_override_the_file(written):
    agent = load_agent(
        {"shell_timeout": 9, "sandbox": "off", "search_url": None}, file=written(FULL)
    )
    sandbox = msgspec.structs.replace(SANDBOX, mode="off")
    assert agent == msgspec.structs.replace(LOADED, shell_timeout=9, sandbox=sandbox)


def test_the_server_table_takes_the_names_of_the_options(written):
    text = (
        "[server]\nagent = true\nshell_timeout = 3\nsandbox = 'off'\nsb_max_procs = 8\nport = 9\n"
    )
    server = serving(written(text))
    assert server.port == 9 and server.agent.shell_timeout == 3 and server.agent.enable_search
    assert server.agent.sandbox == SandboxSettings(mode="off", max_procs=8)


@pytest.mark.parametrize(
    ("text", "options", "on"),
    [
        ("", {"agent": True}, "search code shell"),
        ("", {"agent": True, "enable_shell": False}, "search code"),
        ("", {"enable_search": True}, "search"),
        ("[agent]\nenable_shell = false\n", {"agent": True}, "search code shell"),
        ("[agent]\nenable_all = true\nenable_search = false\n", {}, "code shell"),
        ("[agent]\nenable_all = true\n", {"enable_shell": False}, "search code"),
        ("[agent]\nenable_all = true\nshell_timeout = 3\n", {"agent": False}, ""),
        ("[agent]\nenable_shell = true\nshell_timeout = 3\n", {"enable_shell": False}, ""),
        ("[agent]\nenable_all = false\nenable_search = true\n", {}, "search"),
    ],
)
def test_the_shortcut_and_the_switches(written, text, options, on):
    agent = load_agent(options, file=written(text))
    flags = {
        "search": agent.enable_search,
        "code": agent.enable_code_execution,
        "shell": agent.enable_shell,
    }
    assert " ".join(name for name, value in flags.items() if value) == on


def test_a_secret_may_be_the_content_of_a_file(tmp_path):
    secret = tmp_path / "key"
    secret.write_text("hush\n")
    url = "http://127.0.0.1/run"
    options = {"tool_dispatch_url": url, "tool_dispatch_secret_file": str(secret)}
    assert load_agent(options, file=None).tool_dispatch_secret == "hush"
    search = {"agent": True, "search_engine": "brave", "search_api_key_file": str(secret)}
    assert load_agent(search, file=None).search.api_key == "hush"


def test_secrets_are_not_shown():
    search = SearchSettings(engine="brave", api_key="hush")
    agent = AgentSettings(tool_dispatch_secret="hush", search=search)
    assert "hush" not in repr(agent) and "tool_dispatch_secret='...'" in repr(agent)
    assert "tool_dispatch_secret=None" in repr(AgentSettings())
    assert msgspec.convert(msgspec.to_builtins(agent), AgentSettings) == agent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agent]\nenable_shel = true", "'enable_shel' in .agent.; did you mean 'enable_shell'"),
        ("[agent.search]\nkind = 'x'", "'kind' in .agent.search."),
        ("[agent]\nsearch = 'ddgs'", "agent.search must be a table"),
        ("[agent.sandbox]\nmode = 'on'", "'sandbox' in .agent."),
        ("[sandbox]\nprocs = 3", "'procs' in .sandbox."),
        ("[sandbox]\nmode = 'strict'", "mode: .*'auto', 'on', 'off'"),
        ("[sandbox]\nmax_procs = 'many'", "max_procs: expected"),
        ("[agent]\nenable_all = 1", "agent must be true or false"),
        ("[agent]\nagent_permission = 'maybe'", "'auto', 'ask', 'deny'"),
        ("[server.agent]\nenable_all = true", "'agent' in .server."),
        ("[server]\nno_ui = 3", "no_ui: expected"),
        ("[server]\nsandbox = 'off'\n[sandbox]\nmode = 'on'", "sandbox is given in .server. and"),
        ("[agent]\ntool_dispatch_secret = 3", "tool_dispatch_secret: expected"),
        ("[agent]\ntool_dispatch_secret = 'x'", "tool_dispatch_secret needs tool_dispatch_url"),
        ("[agent]\ntool_dispatch_timeout = 3", "tool_dispatch_timeout needs tool_dispatch_url"),
        ("[agent.search]\nengine = 'brave'", "search_engine needs enable_search"),
        ("[agent]\nenable_search = true\n[agent.search]\nengine = 'brave'", "needs search_api_key"),
        ("[agent]\nenable_search = true\n[agent.search]\nengine = 'searxng'", "needs search_url"),
        ("[agent]\nenable_search = true\n[agent.search]\nurl = 'http://a'", "engine 'searxng'"),
        ("[agent]\nmcp_port = 1234", "mcp_port must not be the server's own port"),
    ],
)
def test_a_wrong_file_is_refused_by_name(written, text, said):
    with pytest.raises(SettingsError, match=said):
        serving(written(text))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_shell": True, "shell_path": "sh"}, "shell_path 'sh' must be the absolute path"),
        ({"enable_shell": True, "shell_path": "/etc/passwd"}, "shell_path '/etc/passwd' must be"),
        ({"agent": True, "code_exec_python": "python0"}, "code_exec_python 'python0' is no exec"),
        (
            {"agent": True, "code_exec_workdir": "/no/where"},
            "code_exec_workdir '/no/where' must be",
        ),
        ({"agent": True, "shell_workdir": "/etc/passwd"}, "shell_workdir '/etc/passwd' must be"),
        ({"mcp_config": "/no/where.json"}, "mcp_config '/no/where.json' is no file"),
        ({"mcp_config": "/etc"}, "mcp_config '/etc' is no file"),
        (
            {"tool_dispatch_url": "ftp://a/b"},
            "tool_dispatch_url must be an http:// or https:// URL",
        ),
        ({"tool_dispatch_url": "http:///b"}, "tool_dispatch_url must be"),
        ({"tool_dispatch_url": "http://[a"}, "tool_dispatch_url must be"),
        ({"agent": True, "search_engine": "searxng", "search_url": "a.b"}, "search_url must be"),
        (
            {"search_api_key_file": "/no/where"},
            "search_api_key_file '/no/where' cannot be read: No",
        ),
        ({"search_api_key_file": "/dev/null"}, "search_api_key_file '/dev/null' is empty"),
        ({"search_api_key_file": "/etc"}, "search_api_key_file '/etc' cannot be read: Is a"),
    ],
)
def test_an_option_that_names_an_unusable_thing_is_refused(options, said):
    with pytest.raises(SettingsError, match=said):
        load_agent(options, file=None)


def test_a_url_with_a_password_is_not_repeated():
    with pytest.raises(SettingsError) as refused:
        load_agent({"tool_dispatch_url": "ftp://user:hush@a/b"}, file=None)
    assert "hush" not in str(refused.value)


RANGES = [*AGENT_RANGES.items(), *((f"sb_{name}", r) for name, r in SANDBOX_RANGES.items())]


@pytest.mark.parametrize(("name", "bounds"), RANGES)
def test_ranges_are_closed(name, bounds):
    needed = {"agent": True, "tool_dispatch_url": "http://127.0.0.1/"}
    for value in bounds:
        load_agent({name: value, **needed}, file=None)
    for value in (bounds[0] - 1, bounds[1] + 1):
        with pytest.raises(SettingsError, match=f"^{name} must be from"):
            load_agent({name: value, **needed}, file=None)
