"""Tools that the server executes: their identity, their input and their results.

The agent loop creates these objects; the dialects encode them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.dialog.message import Image, ToolCall, ToolResult

ToolKind = Literal["code_execution", "web_search", "shell", "file", "custom", "external"]
ToolSource = Literal["built_in", "user", "mcp", "external"]


class ServerTool(msgspec.Struct, frozen=True):
    """A tool that the server executes.

    - `name`: the function name that the model calls.
    - `label`: a name to show to people.
    - `server`: the name of the MCP server that provides the tool, "" for other tools.
    """

    name: str
    kind: ToolKind
    source: ToolSource
    label: str
    server: str = ""


class PythonActivity(msgspec.Struct, frozen=True, tag="code_execution", kw_only=True):
    """A call of the Python interpreter. Results are set once the call is complete.

    - `status`: `success`, `error`, `timeout` or `denied`; "" while the call runs.
    - `exception`: the traceback, or why the code did not run.
    - `result`: the repr of the last expression.
    - `images`: PNG files: figures and images that the code showed.
    - `video_frames`: PNG files: frames of saved animations.
    """

    code: str
    status: str = ""
    stdout: str = ""
    stderr: str = ""
    exception: str | None = None
    result: str | None = None
    images: tuple[bytes, ...] = ()
    video_frames: tuple[bytes, ...] = ()
    working_directory: str = ""
    execution_time_ms: int = 0


class ShellActivity(msgspec.Struct, frozen=True, tag="shell", kw_only=True):
    """A call of the shell. Results are set once the call is complete.

    - `status`: `success`, `error`, `timeout` or `denied`; "" while the call runs.
    - `exit_code`: None if the shell was killed or did not run.
    """

    commands: tuple[str, ...]
    status: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    working_directory: str = ""


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A page that a search found. `content`: the passage that the model sees."""

    title: str
    url: str
    description: str = ""
    content: str = ""


class SearchActivity(msgspec.Struct, frozen=True, tag="web_search", kw_only=True):
    """A web search (`query`), or the retrieval of one page (`url`).

    - `status`: `success`, `error` or `denied`; "" while the call runs.
    """

    query: str | None = None
    url: str | None = None
    status: str = ""
    hits: tuple[SearchHit, ...] = ()


class CustomActivity(msgspec.Struct, frozen=True, tag="custom", kw_only=True):
    """A call of any other tool: file tools, MCP tools, the dispatch URL.

    - `arguments`: JSON text.
    - `status`: `success`, `error` or `denied`; "" while the call runs.
    - `content`: the result as the model sees it.
    """

    arguments: str
    status: str = ""
    content: str = ""


ToolActivity = PythonActivity | ShellActivity | SearchActivity | CustomActivity


class ProducedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a server tool made, or the placeholder of a file that it should have made.

    - `created_at`: Unix seconds.
    - `tool`, `round`, `turn`: the origin of the file.
    - `text`: the whole text of a text file, `data` the content of another file; both are None if
      the content is larger than the inline limit or was not kept.
    - `preview`: the beginning of a text file.
    - `code`, `message`: the error for which this is a placeholder.
    """

    id: str
    name: str
    format: str
    mime_type: str
    size_bytes: int
    created_at: int
    tool: str
    round: int
    turn: int
    container_id: str
    purpose: str = "agent_output"
    text: str | None = None
    data: bytes | None = None
    preview: str | None = None
    code: str | None = None
    message: str | None = None


class ToolRun(msgspec.Struct, frozen=True, kw_only=True):
    """A completed call of a server tool.

    - `round`: the round in which the model made the call, from 0.
    - `result`: the result as the model sees it.
    - `files`: the files that the call made.
    - `images`: images of the result that the model sees.
    """

    round: int
    call: ToolCall
    tool: ServerTool
    activity: ToolActivity
    result: ToolResult
    files: tuple[ProducedFile, ...] = ()
    images: tuple[Image, ...] = ()
