"""Unsupported features are rejected by name or have no route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.agent import AgentLoop
from penstock.generation import Generator
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": HELLO | {"max_tokens": 5},
}
IMAGE = "data:image/png;base64,iVBORw0KGgo="
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {}}}
SKILL = {"type": "skill_reference", "skill_id": "skill_1"}
SHELL = {"type": "shell", "environment": {"type": "container_auto", "skills": [SKILL]}}
OUTPUT = [{"name": "a.csv"}]


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    """A server with the real generator over an engine that no request may reach."""
    engine = ScriptedEngine([])
    loop = AgentLoop(Generator(engine, tiny_tokenizer(), tiny_template()))
    async with serving(models={MODEL: loop}) as running:
        yield running
    assert engine.requests == []


async def refusal(server: Serving, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    answer = await server.http.post(path, json=ROUTES[path] | fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"tools": [PYTHON]}),
        ("/v1/chat/completions", {"tools": [PYTHON], "tool_choice": "required"}),
        ("/v1/chat/completions", {"tools": [PYTHON], "enable_shell": True}),
        ("/v1/chat/completions", {"enable_shell": True}),
        ("/v1/chat/completions", {"web_search_options": {}, "tools": [FUNCTION]}),
        ("/v1/responses", {"tools": [{"type": "web_search"}]}),
        ("/v1/responses", {"tools": [{"type": "web_search_preview"}]}),
        ("/v1/responses", {"tools": [PYTHON]}),
        ("/v1/responses", {"tools": [SHELL]}),
        ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("/v1/messages", {"enable_code_execution": True}),
    ],
)
async def test_server_side_tools_are_rejected(
    server: Serving, path: str, fields: dict[str, Any], stream: bool
) -> None:
    error = await refusal(server, path, fields | {"stream": stream})
    asked = next(iter(fields))
    asked = "tools[0]" if asked == "tools" else asked
    assert error["message"].startswith(f"{asked} cannot be used: this server runs no ")
    assert error.get("param", asked) == asked  # Anthropic's errors have no `param`


@pytest.mark.parametrize(
    ("tool", "client", "option"),
    [
        ({"type": "web_search"}, 'web_search = "disabled"', "--enable-search"),
        (
            {"type": "web_search", "external_web_access": False},  # the format that Codex sends
            'web_search = "disabled"',
            "--enable-search",
        ),
        ({"type": "web_search_preview"}, "`web_search`", "--enable-search"),
        (PYTHON, "`code_interpreter`", "--enable-code-execution"),
        (SHELL, "`shell`", "--enable-shell"),
    ],
)
async def test_error_for_a_tool_names_the_client_setting_and_the_server_option(
    server: Serving, tool: dict[str, Any], client: str, option: str
) -> None:
    error = await refusal(server, "/v1/responses", {"tools": [tool]})
    assert client in error["message"] and option in error["message"]
    assert error["code"] == "unsupported_value"


async def test_rejected_tool_among_functions_is_named(server: Serving) -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    error = await refusal(server, "/v1/responses", {"tools": tools})
    assert error["param"] == "tools[1]"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_output_files_are_rejected(server: Serving, path: str) -> None:
    error = await refusal(server, path, {"files": OUTPUT})
    assert error["message"].startswith("files cannot be used")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("adapter", "param"), [("style", "adapter"), ({"generation": "g1"}, "adapter.generation")]
)
async def test_adapters_are_rejected_without_a_lora_runtime(
    server: Serving, path: str, adapter: Any, param: str
) -> None:
    error = await refusal(server, path, {"adapter": adapter})
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


@pytest.mark.parametrize("path", ROUTES)
async def test_adapter_alias_is_not_a_model_without_a_lora_runtime(
    server: Serving, path: str
) -> None:
    answer = await server.http.post(path, json=ROUTES[path] | {"model": "style"})
    assert answer.status_code == 404


async def test_adapter_list_is_a_409_with_a_reason(server: Serving) -> None:
    for query in ("", "?model=default", f"?model={MODEL}"):
        answer = await server.http.get(f"/v1/lora_adapters{query}")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "lora_runtime_unavailable")
        assert MODEL in error["message"]
    unknown = await server.http.get("/v1/lora_adapters?model=other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    metrics = text_string_to_metric_families((await server.http.get("/metrics")).text)
    (requests,) = (family for family in metrics if family.name == "http_requests")
    assert {sample.labels["model"] for sample in requests.samples} == {MODEL, "unknown"}


async def test_images_are_rejected(server: Serving) -> None:
    image = {"type": "image_url", "image_url": {"url": IMAGE}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]
    error = await refusal(server, "/v1/chat/completions", {"messages": messages})
    assert (
        error["param"] == "messages[0].content[1].image_url"
        and "reads text only" in error["message"]
    )


async def test_rejected_field_is_named_as_the_client_wrote_it(server: Serving) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    picture = {"type": "image", "source": source}
    blocks = [{"type": "text", "text": "what?"}, picture]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "and this:"},  # one turn with the last one
        {"role": "user", "content": blocks},
    ]
    answer = await server.http.post(
        "/v1/messages", json={"system": "s", "messages": messages, "max_tokens": 1}
    )
    assert answer.status_code == 400
    assert "`messages[2].content[1]`: could not process image" in answer.json()["error"]["message"]
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]},
    ]
    error = await refusal(server, "/v1/responses", {"input": items, "instructions": "s"})
    assert error["param"] == "input[3].content[0]"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/v1/unload_lora_adapter", 404),
        ("POST", "/v1/audio/transcriptions", 404),
        ("POST", "/v1/moderations", 404),
        ("POST", "/v1/batches", 404),
        ("POST", "/v1/tokenize", 404),
    ],
)
async def test_routes_without_a_runtime_do_not_exist(
    server: Serving, method: str, path: str, status: int
) -> None:
    answer = await server.http.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == status and answer.json()["error"]["code"]
