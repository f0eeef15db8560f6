"""The command-line options of server tools and their sandbox."""

from __future__ import annotations

from typing import Final, Literal

from penstock.cli.setting_option import SettingOption, in_panel

AGENT_PANEL: Final = "Agent"
EXTERNAL_PANEL: Final = "Web search and external tools"
SANDBOX_PANEL: Final = "Sandbox"

_TOOL_OPTIONS: Final = in_panel(
    AGENT_PANEL,
    SettingOption(
        "agent",
        ("--agent", "--agentic"),
        bool,
        "Run tools on the server: web search, Python and a shell.",
        "off",
        key="enable_all",
    ),
    SettingOption(
        "enable_search", ("--enable-search",), bool, "Offer web search and page extraction."
    ),
    SettingOption(
        "enable_code_execution",
        ("--enable-code-execution",),
        bool,
        "Offer a Python interpreter in the sandbox.",
    ),
    SettingOption("enable_shell", ("--enable-shell",), bool, "Offer a shell in the sandbox."),
    SettingOption(
        "agent_permission",
        ("--agent-permission", "--code-exec-permission"),
        Literal["auto", "ask", "deny"],
        "Run tool calls at once, wait for an approval of each, or refuse them. A request can only"
        " be stricter.",
    ),
    SettingOption(
        "max_tool_rounds",
        ("--max-tool-rounds",),
        int,
        "Maximum rounds of tool calls in a request that names no maximum.",
        "256",
    ),
    SettingOption(
        "code_exec_python",
        ("--code-exec-python",),
        str,
        "Python interpreter: a name on PATH or a path.",
        metavar="PATH",
    ),
    SettingOption(
        "code_exec_timeout",
        ("--code-exec-timeout",),
        int,
        "Seconds after which a Python call is interrupted.",
        metavar="SECONDS",
    ),
    SettingOption(
        "code_exec_workdir",
        ("--code-exec-workdir",),
        str,
        "Existing folder for the files of Python sessions; each gets a subfolder.",
        "in memory",
        "FOLDER",
    ),
    SettingOption(
        "shell_path", ("--shell-path",), str, "Absolute path of the shell.", metavar="PATH"
    ),
    SettingOption(
        "shell_timeout",
        ("--shell-timeout",),
        int,
        "Seconds after which a shell call is killed.",
        metavar="SECONDS",
    ),
    SettingOption(
        "shell_workdir",
        ("--shell-workdir",),
        str,
        "Existing folder for the files of shell sessions; each gets a subfolder.",
        "in memory",
        "FOLDER",
    ),
    SettingOption(
        "session_idle_s",
        ("--session-idle",),
        int,
        "Seconds without a call after which the processes of a session end.",
        metavar="SECONDS",
    ),
    SettingOption(
        "max_containers",
        ("--max-containers",),
        int,
        "Sessions with running processes, per API process. Beyond it, the longest idle one ends.",
    ),
)
_MCP_CONFIG: Final = in_panel(
    EXTERNAL_PANEL,
    SettingOption(
        "mcp_config",
        ("--mcp-config",),
        str,
        "JSON file with the MCP servers whose tools are offered.",
        "none",
        "FILE",
    ),
)
_SERVER_ONLY: Final = in_panel(
    EXTERNAL_PANEL,
    SettingOption(
        "mcp_port",
        ("--mcp-port",),
        int,
        "Port at which this server is itself an MCP server.",
        "none",
    ),
    SettingOption(
        "tool_dispatch_url",
        ("--tool-dispatch-url",),
        str,
        "URL that runs the functions of requests: it gets their names and arguments by POST.",
        "none",
        "URL",
    ),
    SettingOption(
        "tool_dispatch_timeout",
        ("--tool-dispatch-timeout",),
        int,
        "Seconds that the URL may take for a call.",
        metavar="SECONDS",
    ),
    SettingOption(
        "tool_dispatch_secret_file",
        ("--tool-dispatch-secret-file",),
        str,
        "File with the key of the HMAC-SHA256 signature of calls to the URL.",
        "calls are not signed",
        "FILE",
    ),
    SettingOption(
        "tool_dispatch_secret",
        (),
        str,
        "The key itself, instead of its file.",
        "none",
    ),
)
SEARCH_OPTIONS: Final = in_panel(
    EXTERNAL_PANEL,
    SettingOption(
        "search_engine",
        ("--search-engine",),
        Literal["ddgs", "searxng", "brave"],
        "Search engine: DuckDuckGo and others by `ddgs`, a SearXNG instance, or Brave's API.",
        metavar="NAME",
        key="engine",
    ),
    SettingOption(
        "search_url",
        ("--search-url",),
        str,
        "Base URL of the SearXNG instance.",
        "none",
        "URL",
        key="url",
    ),
    SettingOption(
        "search_api_key_file",
        ("--search-api-key-file",),
        str,
        "File with the key of Brave's API.",
        "none",
        "FILE",
        key="api_key_file",
    ),
    SettingOption(
        "search_api_key",
        (),
        str,
        "The key itself, instead of its file.",
        "none",
        key="api_key",
    ),
)
SANDBOX_OPTIONS: Final = in_panel(
    SANDBOX_PANEL,
    SettingOption(
        "sandbox",
        ("--sandbox",),
        Literal["auto", "on", "off"],
        "Confine tools: auto warns of layers that this machine lacks, on refuses to start without"
        " them, off confines nothing.",
        key="mode",
    ),
    SettingOption(
        "sandbox_profile",
        ("--sandbox-profile",),
        Literal["restricted", "developer"],
        "restricted, or developer: with the toolchains of this machine, and its network.",
        metavar="NAME",
        key="profile",
    ),
    SettingOption(
        "sandbox_network",
        ("--sandbox-network",),
        Literal["none", "loopback", "full"],
        "Network of tools: none, loopback (the sandbox's own), or full (this machine's).",
        "loopback; full with --sandbox-profile developer",
        "NAME",
        key="network",
    ),
    SettingOption(
        "sb_max_memory_mb",
        ("--sb-max-memory-mb",),
        int,
        "MiB of memory per session, and of files per session.",
        metavar="MIB",
        key="max_memory_mb",
    ),
    SettingOption(
        "sb_max_cpu_secs",
        ("--sb-max-cpu-secs",),
        int,
        "CPU seconds of each process of a session.",
        metavar="SECONDS",
        key="max_cpu_secs",
    ),
    SettingOption(
        "sb_max_procs",
        ("--sb-max-procs",),
        int,
        "Processes and threads per session.",
        key="max_procs",
    ),
)
AGENT_OPTIONS: Final = (*_TOOL_OPTIONS, *_MCP_CONFIG, *_SERVER_ONLY)
# Options of tools for a command that runs a model without a server.
LOCAL_TOOL_OPTIONS: Final = (*_TOOL_OPTIONS, *SEARCH_OPTIONS, *_MCP_CONFIG, *SANDBOX_OPTIONS)
