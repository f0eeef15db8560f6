"""Server tools of the real `penstock serve` process, with the default model and the real sandbox.

The model is too small to choose a tool by itself. The requests require a call, and earlier turns of
the conversation show it the call to make.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest

from penstock.config import SandboxSettings
from penstock.sandbox.layers import OPTIONAL_LAYERS, probe
from tests.e2e.conftest import COMMAND, RunningServer

pytestmark = pytest.mark.slow

MISSING = [layer for layer, _ in probe(SandboxSettings()).missing if layer not in OPTIONAL_LAYERS]
INTERPRETER: dict[str, Any] = {"type": "code_interpreter", "container": {"type": "auto"}}
CODE = "6 * 7"
LOOP = "while True: pass"
INTERPRETER_START = "import marshal"  # of the program that the interpreter of a session runs
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"const": "Graz"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@contextmanager
def dispatch_service() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run a service for --tool-dispatch-url. Yields its URL and the calls that it gets."""
    calls: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = b'{"content": "sunny"}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{service.server_port}/", calls
        service.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def dispatched() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with dispatch_service() as service:
        yield service


@pytest.fixture(scope="module")
def server(default_model: Path, dispatched: tuple[str, Any]) -> Iterator[RunningServer]:
    """Two API processes with Python and the dispatch URL. Search and the shell are off."""
    mode = "auto" if MISSING else "on"
    tools = ("--enable-code-execution", "--sandbox", mode, "--tool-dispatch-url", dispatched[0])
    running = RunningServer("--workers", "2", *tools)
    yield running
    running.stop()


def shown_calls() -> list[dict[str, Any]]:
    """Return turns in which the assistant ran some code, as messages of the chat dialect."""
    turns: list[dict[str, Any]] = []
    for number, (code, result) in enumerate((("2 + 3", "5"), ("for x in range(3): pass", ""))):
        function = {"name": "service_execute_python", "arguments": json.dumps({"code": code})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        output = json.dumps({"status": "success", "result": result})
        turns += [
            question(code),
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": output},
            {"role": "assistant", "content": f"The result is {result}."},
        ]
    return turns


def question(code: str) -> dict[str, Any]:
    return {"role": "user", "content": f"Run the Python code {code}"}


def responses_items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a message of the chat dialect as input items of Responses."""
    if message["role"] == "tool":
        call_id, output = message["tool_call_id"], message["content"]
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    calls = message.get("tool_calls", [])
    items = [{"type": "function_call", "call_id": c["id"], **c["function"]} for c in calls]
    return items or [message]


def messages_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the chat dialect in the form of Messages."""
    if message["role"] == "tool":
        id, content = message["tool_call_id"], message["content"]
        block = {"type": "tool_result", "tool_use_id": id, "content": content}
        return {"role": "user", "content": [block]}
    blocks = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", [])
    ]
    return {"role": message["role"], "content": blocks or message["content"]}


def python_body(code: str, **fields: Any) -> dict[str, Any]:
    """Return a chat request that makes the model run some code once."""
    fields = {"messages": [*shown_calls(), question(code)], "tools": [INTERPRETER]} | fields
    limits = {"max_tokens": 150, "max_tool_rounds": 1}
    return {"model": "default", "tool_choice": "required", "temperature": 0, **limits, **fields}


def ask(server: RunningServer, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + "/v1/chat/completions", json=body, timeout=120)


@contextmanager
def streaming(
    client: httpx.Client, server: RunningServer, body: dict[str, Any]
) -> Iterator[tuple[httpx.Response, Iterator[tuple[str, dict[str, Any]]]]]:
    """Send a streamed request. Yields the response and its events of server tools, as (name,
    data)."""
    url = server.url + "/v1/chat/completions"
    with client.stream("POST", url, json=body | {"stream": True}, timeout=120) as answer:
        yield answer, tool_events(answer.iter_lines())


def tool_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines:
        if line.startswith("event: "):
            yield line[7:], json.loads(next(lines).removeprefix("data: "))


def worker_of(server: RunningServer, answer: httpx.Response) -> int:
    """Return the process id of the API process at the other end of a connection."""
    port: int = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
    for worker in psutil.Process(server.process.pid).children():
        if any(one.raddr and one.raddr.port == port for one in worker.net_connections("tcp")):
            return int(worker.pid)
    raise AssertionError("no API process has the connection")


def test_the_server_says_what_is_on_and_what_holds(server: RunningServer) -> None:
    info = httpx.get(server.url + "/v1/system/info").json()
    agent, sandbox = info["agent"], info["sandbox"]
    assert (agent["code_execution"], agent["shell"], agent["search"]) == (True, False, False)
    assert agent["dispatch"] is True and agent["permission"] == "auto"
    assert (sandbox["profile"], sandbox["network"]) == ("restricted", "loopback")
    missing = {entry["layer"] for entry in sandbox["missing"]}
    assert missing >= set(MISSING) and missing.isdisjoint(sandbox["layers"])
    for layer in missing:
        assert any(f"without the sandbox layer {layer}" in line for line in server.lines)


def test_sandbox_on_refuses_a_machine_that_lacks_a_layer(
    server: RunningServer, default_model: Path
) -> None:
    if not MISSING:  # the server of these tests was started with `on`
        assert httpx.get(server.url + "/v1/system/info").json()["sandbox"]["mode"] == "on"
        return
    command = [*COMMAND, "serve", str(default_model), "--port", "0", "--enable-code-execution"]
    done = subprocess.run([*command, "--sandbox", "on"], capture_output=True, text=True, timeout=90)
    assert done.returncode != 0 and MISSING[0] in done.stdout + done.stderr


def test_a_required_call_runs_in_the_sandbox(server: RunningServer) -> None:
    answer = ask(server, python_body(CODE)).json()
    (call,) = answer["agentic_tool_calls"]
    assert json.loads(call["arguments"])["code"] == CODE
    result = json.loads(call["result_content"])
    assert (result["status"], result["result"]) == ("success", "42")
    if not MISSING:
        assert result["working_directory"] == "/mnt/data"
    assert answer["session_id"].startswith("sess_")
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    while not any("tool=service_execute_python status=success" in line for line in server.lines):
        time.sleep(0.02)  # the line comes through a pipe


def test_responses_has_an_item_for_the_call(server: RunningServer) -> None:
    shown: list[dict[str, Any]] = []
    for message in shown_calls():
        shown += responses_items(message)
    client: Any = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
    answer = client.responses.create(
        model="default",
        input=[*shown, question(CODE)],
        tools=[INTERPRETER],
        tool_choice="required",
        temperature=0,
        max_output_tokens=150,
        include=["code_interpreter_call.outputs"],
        extra_body={"max_tool_rounds": 1},
    )
    (call,) = (item for item in answer.output if item.type == "code_interpreter_call")
    assert (call.code, call.status) == (CODE, "completed")
    assert call.outputs[0].logs == "42"


def test_messages_has_blocks_for_the_call(server: RunningServer) -> None:
    shown = [messages_message(message) for message in shown_calls()]
    client: Any = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
    answer = client.messages.create(
        model="default",
        max_tokens=150,
        messages=[*shown, question(CODE)],
        tools=[{"type": "code_execution_20250825", "name": "code_execution"}],
        tool_choice={"type": "any"},
        extra_body={"max_tool_rounds": 1, "temperature": 0},
    )
    use, result = answer.content[:2]
    assert (use.type, use.input["code"]) == ("server_tool_use", CODE)
    assert result.tool_use_id == use.id and json.loads(result.result_content)["result"] == "42"


def test_tools_that_are_off_are_refused_with_the_name_of_their_option(
    server: RunningServer,
) -> None:
    refused = ask(server, python_body("1", web_search_options={}))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "unsupported_value" and "--enable-search" in error["message"]


def test_functions_go_to_the_dispatch_url(
    server: RunningServer, dispatched: tuple[str, list[dict[str, Any]]]
) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    messages = [{"role": "user", "content": "What is the weather in Graz?"}]
    body = python_body("", messages=messages, tools=[WEATHER], tool_choice=choice)
    answer = ask(server, body).json()
    assert dispatched[1][0] == {"name": "get_weather", "arguments": {"city": "Graz"}}
    assert answer["agentic_tool_calls"][0]["result_content"] == "sunny"


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_an_approval_may_go_to_the_other_api_process(server: RunningServer, decision: str) -> None:
    body = python_body(CODE, agent_permission="ask")
    with httpx.Client() as client, streaming(client, server, body) as (answer, events):
        asking = worker_of(server, answer)
        seen = [next(events), next(events)]
        name, asked = seen[1]
        assert name == "agentic_tool_approval_required" and CODE in json.dumps(asked["arguments"])
        for _ in range(50):  # connections, until one leads to the other process
            with httpx.Client() as other:
                if worker_of(server, other.get(server.url + "/health")) == asking:
                    continue
                url = f"{server.url}/v1/agent/approvals/{asked['approval_id']}"
                told = other.post(url, json={"decision": decision, "message": "Not now."})
                assert told.json() == {"status": "resolved"}
                break
        else:
            raise AssertionError("every connection led to the same API process")
        complete = next(events)[1]["data"]
    assert complete.get("exception") == (None if decision == "approve" else "Not now.")
    assert complete.get("result") == ("42" if decision == "approve" else None)


def test_a_client_that_leaves_ends_its_code(server: RunningServer) -> None:
    own = psutil.Process(server.process.pid)
    before = set(own.children(recursive=True))
    with httpx.Client() as client, streaming(client, server, python_body(LOOP)) as (_, events):
        assert next(events)[1]["phase"] == "calling"
        started = programs_after(own, before)
        if not MISSING:
            namespaces = {os.readlink(f"/proc/{pid}/ns/pid") for pid in (started[0].pid, own.pid)}
            assert len(namespaces) == 2
    while any(is_busy(process) for process in started):
        time.sleep(0.02)


def is_busy(process: psutil.Process) -> bool:
    """Whether the process computes, as an endless loop does."""
    try:
        return bool(process.status() == psutil.STATUS_RUNNING)
    except psutil.NoSuchProcess:
        return False


def test_a_killed_interpreter_is_a_result_and_the_session_goes_on(server: RunningServer) -> None:
    own = psutil.Process(server.process.pid)
    before = set(own.children(recursive=True))
    body = python_body(LOOP, session_id="killed")
    with httpx.Client() as client, streaming(client, server, body) as (_, events):
        assert next(events)[1]["phase"] == "calling"
        programs_after(own, before)[0].send_signal(signal.SIGKILL)
        complete = next(events)[1]["data"]
        assert "ended unexpectedly" in complete["exception"]
    again = ask(server, python_body(CODE, session_id="killed")).json()
    assert json.loads(again["agentic_tool_calls"][0]["result_content"])["result"] == "42"


def programs_after(own: psutil.Process, before: set[psutil.Process]) -> list[psutil.Process]:
    """Wait for the interpreters of tools that started since `before`."""
    while True:
        new = (process for process in own.children(recursive=True) if process not in before)
        if found := [process for process in new if is_interpreter(process)]:
            return found


def is_interpreter(process: psutil.Process) -> bool:
    try:
        return INTERPRETER_START in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_sigterm_leaves_no_process(server: RunningServer) -> None:
    """Must be the last test of the file: it ends the server."""
    assert ask(server, python_body(CODE)).status_code == 200
    everything = psutil.Process(server.process.pid).children(recursive=True)
    containers = [process for process in everything if process.name() in ("init", "supervisor")]
    assert MISSING or containers
    assert server.stop() == 0
    assert psutil.wait_procs(everything, timeout=10)[1] == []
