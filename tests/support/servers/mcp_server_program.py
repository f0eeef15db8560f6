"""An MCP server on standard input and output. `sys.argv[1]` names its behaviour:

- `honest`: tools that work, fail, never end, and change the list of tools.
- `many`: 1,000 tools.
- `garbage`: writes lines that are no messages.
- `silent`: reads and never answers.
- `huge`: a tool whose answer is a line of 100 MB, and one with a schema that is slow to check.
- `fragile`: a tool during which the server dies. Its tool `pid` returns the process id.
- `stubborn`: ignores SIGTERM and the end of its input, and has a child that does too.
- `broken`: exits at once, with a message on standard error.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

FOREVER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def honest_server() -> Any:
    """Return a server with tools that succeed and fail in all ways that the protocol has."""
    from mcp.server.mcpserver import Context, Image, MCPServer
    from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations

    server = MCPServer("honest", version="1")
    running: list[int] = []

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.tool()
    def fail() -> str:
        raise ValueError("the tool refuses")

    @server.tool()
    def environment() -> str:
        return ",".join(sorted(os.environ))

    @server.tool()
    def pid() -> str:
        return str(os.getpid())

    @server.tool(structured_output=False)
    def picture() -> Image:
        return Image(data=b"\x89PNG", format="png")

    @server.tool(structured_output=False)
    def mixed() -> CallToolResult:
        image = ImageContent(data="iVBORw0K", mime_type="image/png")
        return CallToolResult(content=[TextContent(text="one"), image, TextContent(text="two")])

    @server.tool(structured_output=False)
    def long(size: int) -> str:
        return "x" * size

    @server.tool()
    async def wait(started: str, cancelled: str) -> str:
        """Make the file `started`, then wait. Make the file `cancelled` if the call is."""
        Path(started).write_text("")
        try:
            await asyncio.Event().wait()
        finally:
            Path(cancelled).write_text("")
        return ""

    @server.tool()
    async def crowd() -> str:
        """Return the number of calls of this tool that run at once."""
        running.append(1)
        for _ in range(100):
            await asyncio.sleep(0)
        number = len(running)
        running.pop()
        return str(number)

    @server.tool()
    async def grow(context: Context) -> str:
        """Add the tool `grown` and tell the client."""

        def grown() -> str:
            return "grown"

        server.add_tool(grown)
        await context.notify_tools_changed()  # for clients that listen, in the newest version
        await context.session.send_tool_list_changed()  # for clients of older versions
        return "done"

    return server


def many_server() -> Any:
    """Return a server with 1,000 tools."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("many", version="1")
    for number in range(1000):
        server.add_tool(lambda: "done", name=f"tool.{number}", structured_output=False)
    return server


def fragile_server() -> Any:
    """Return a server that a call kills."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("fragile", version="1")

    @server.tool()
    def die() -> str:
        print("fatal: out of luck", file=sys.stderr, flush=True)
        os._exit(3)

    @server.tool()
    def pid() -> str:
        return str(os.getpid())

    return server


def serve_flood() -> None:
    """Serve a tool whose answer is 100 MB without an end, and one with a result that takes years to
    check against its schema. The package's own server would not; this one is written by hand."""
    slow_schema = {"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}}
    trap = {"content": [], "structuredContent": {"x": "a" * 64 + "b"}}
    answers: dict[str, dict[str, Any]] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "huge", "version": "1"},
        },
        "tools/list": {
            "tools": [
                {"name": "flood", "inputSchema": {"type": "object"}},
                {"name": "trap", "inputSchema": {"type": "object"}, "outputSchema": slow_schema},
            ]
        },
    }
    for line in sys.stdin:
        request = json.loads(line)
        if request["method"] == "tools/call" and request["params"]["name"] == "trap":
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": trap}), flush=True)
        elif request["method"] == "tools/call":
            for _ in range(100):
                os.write(1, b"x" * 1_000_000)
        elif request["method"] in answers:
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": answers[request["method"]]}
            print(json.dumps(answer), flush=True)
        elif "id" in request:
            error = {"code": -32601, "message": "not found"}
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)


def stubborn_server() -> Any:
    """Return a server that does not want to end, and has a child that does not either. Its tool
    `pids` returns both process ids."""
    from mcp.server.mcpserver import MCPServer

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", FOREVER])
    server = MCPServer("stubborn", version="1")

    @server.tool()
    def pids() -> str:
        return f"{os.getpid()} {child.pid}"

    return server


def main() -> None:
    match sys.argv[1]:
        case "garbage":
            while True:
                print("this is my log", flush=True)
        case "huge":
            serve_flood()
        case "silent":
            sys.stdin.read()
        case "broken":
            sys.exit("cannot find my configuration")
        case "stubborn":
            stubborn_server().run("stdio")
            signal.pause()
        case kind:
            {
                "honest": honest_server,
                "many": many_server,
                "fragile": fragile_server,
            }[kind]().run("stdio")


if __name__ == "__main__":
    main()
