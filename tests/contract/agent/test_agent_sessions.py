"""Server tools over HTTP: sessions, files, approvals, limits. The model is scripted; the sandbox,
the tools and the store are real."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config import AgentSettings
from tests.support.agent_loops import call
from tests.support.servers.agent_server import (
    PYTHON_AND_SHELL,
    AgentServing,
    agent_server,
    python,
    shell,
)

PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}


def ask(text: str = "go", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "tools": [PYTHON], "enable_shell": True, **fields}


def with_skill(skill_id: str) -> dict[str, Any]:
    """Return the shell tool with the latest version of a skill."""
    reference = {"type": "skill_reference", "skill_id": skill_id, "version": "latest"}
    return {"type": "shell", "environment": {"type": "container_auto", "skills": [reference]}}


async def chat(server: AgentServing, **fields: Any) -> dict[str, Any]:
    answer = await server.serving.http.post("/v1/chat/completions", json=ask(**fields))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def events(server: AgentServing, **fields: Any) -> list[tuple[str, Any]]:
    """Return (name, data) of each event of a stream; chunks are named ""."""
    body = ask(**fields, stream=True)
    answer = await server.serving.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        if not lines:
            continue
        name = next((line[7:] for line in lines if line.startswith("event: ")), "")
        data = "".join(line[6:] for line in lines if line.startswith("data: "))
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found


def results(answer: dict[str, Any]) -> list[Any]:
    """Return the decoded result of each call."""
    calls = answer.get("agentic_tool_calls", [])
    return [json.loads(entry["result_content"]) for entry in calls]


async def test_variables_and_files_persist_in_a_session() -> None:
    texts = [
        *(python("x = 20\nopen('a.txt', 'w').write('hi')"), "Stored."),
        *(python("x + 22, open('a.txt').read()"), "42."),
        *(shell("cat a.txt"), "hi."),
    ]
    async with agent_server(texts) as server:
        first = await chat(server)
        session = first["session_id"]
        assert [file["name"] for file in first["files"]] == ["a.txt"]
        second = await chat(server, session_id=session)
        assert results(second)[0]["result"] == "(42, 'hi')"
        third = await chat(server, session_id=session)
        assert results(third)[0]["stdout"] == "hi"
        assert third["session_id"] == session


async def test_sessions_do_not_see_each_other() -> None:
    texts = [python("secret = 1\nopen('s.txt', 'w').write('s')"), "ok"]
    texts += [python("import os\n'secret' in globals(), os.listdir('.')"), "ok"]
    async with agent_server(texts) as server:
        await chat(server)
        assert results(await chat(server))[0]["result"].startswith("(False, [")
        assert "s.txt" not in server.prompts[-1]


async def test_a_session_goes_on_after_a_restart_with_its_files(tmp_path: Path) -> None:
    texts = [python("x = 1\nopen('a.txt', 'w').write('kept')"), "ok"]
    async with agent_server(texts, folder=tmp_path) as server:
        session = (await chat(server))["session_id"]
    texts = [python("open('a.txt').read(), 'x' in globals()"), "ok"]
    async with agent_server(texts, folder=tmp_path) as server:
        result = results(await chat(server, session_id=session))[0]
        assert result["result"] == "('kept', False)"
        assert "variables of earlier calls are gone" in result["note"]


async def test_a_deleted_session_ends_its_container() -> None:
    async with agent_server([python("x = 1"), "ok"]) as server:
        session = (await chat(server))["session_id"]
        assert server.tools.running_containers == 1
        gauge = "service_agent_sandboxes_running"
        assert f"{gauge} 1.0" in (await server.serving.http.get("/metrics")).text
        await server.serving.http.delete(f"/v1/sessions/{session}")
        assert server.tools.running_containers == 0
        assert f"{gauge} 0.0" in (await server.serving.http.get("/metrics")).text


async def test_progress_and_files_are_events_of_the_stream() -> None:
    code = "print('out')\nopen('t.csv', 'w').write('a,b\\n')\n1 / 2"
    async with agent_server([python(code), "Half."]) as server:
        seen = await events(server)
    named = [(name, data) for name, data in seen if name]
    assert [name for name, _ in named] == [
        "agentic_tool_call_progress",
        "agentic_tool_call_progress",
        "file_produced",
    ]
    calling, complete, file = (data for _, data in named)
    assert (calling["phase"], calling["round"]) == ("calling", 0)
    assert calling["tool_name"] == "service_execute_python"
    assert calling["data"] == {"tool_type": "code_execution", "code": code}
    assert complete["phase"] == "complete" and complete["data"]["stdout"] == "out\n"
    assert complete["data"]["working_directory"]
    assert (file["name"], file["format"], file["text"]) == ("t.csv", "csv", "a,b\n")
    assert file["purpose"] == "agent_output"
    assert file["source"] == {"tool": "service_execute_python", "round": 0, "turn": 0}
    last = [data for name, data in seen if not name][-2]
    assert last["session_id"] and last["choices"][0]["finish_reason"] == "stop"


async def test_figures_are_in_events_and_answers() -> None:
    pytest.importorskip("matplotlib")
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    async with agent_server([python(code), "Done."] * 2) as server:
        seen = await events(server)
        image = next(d for n, d in seen if n and d.get("phase") == "complete")["data"]
        assert base64.b64decode(image["images_base64"][0]).startswith(b"\x89PNG")
        entry = (await chat(server))["agentic_tool_calls"][0]
        assert base64.b64decode(entry["result_images_base64"][0]).startswith(b"\x89PNG")


async def test_produced_files_can_be_downloaded_and_are_listed_by_container() -> None:
    async with agent_server([shell("printf data > out.bin; printf '\\377' >> out.bin"), "ok"]) as s:
        answer = await chat(s)
        (file,) = answer["files"]
        assert base64.b64decode(file["data_base64"]) == b"data\xff"
        assert answer["agentic_tool_calls"][0]["file_ids"] == [file["id"]]
        http = s.serving.http
        content = await http.get(f"/v1/files/{file['id']}/content")
        assert content.content == b"data\xff"
        meta = (await http.get(f"/v1/files/{file['id']}")).json()
        assert meta["filename"] == "out.bin" and meta["source"]["tool"] == "service_shell"
        listed = (await http.get("/v1/files")).json()["data"]
        assert file["id"] in [entry["id"] for entry in listed]


async def test_a_required_file_that_was_not_made_is_a_placeholder() -> None:
    texts = [shell("echo hi > made.txt"), "Sorry."]
    async with agent_server(texts) as server:
        answer = await chat(
            server, files=[{"name": "made.txt", "format": "md"}, {"name": "missing.csv"}]
        )
        made, missing = answer["files"]
        assert (made["name"], made["format"]) == ("made.txt", "md")
        assert (missing["name"], missing["code"]) == ("missing.csv", "not_produced")
        content = await server.serving.http.get(f"/v1/files/{missing['id']}/content")
        assert content.status_code == 422
        assert "missing.csv" in server.prompts[0]


async def test_a_file_that_is_too_large_to_keep_is_elided() -> None:
    async with agent_server([shell("head -c 40000000 /dev/zero > big.bin"), "ok"]) as server:
        (file,) = (await chat(server))["files"]
        assert file["bytes"] == 40_000_000 and "data_base64" not in file
        content = await server.serving.http.get(f"/v1/files/{file['id']}/content")
        assert content.status_code == 410


async def test_a_large_file_is_not_inline_but_can_be_fetched() -> None:
    async with agent_server([shell("head -c 9000000 /dev/zero > big.bin"), "ok"]) as server:
        (file,) = (await chat(server))["files"]
        assert file["bytes"] == 9_000_000 and "data_base64" not in file
        content = await server.serving.http.get(f"/v1/files/{file['id']}/content")
        assert len(content.content) == 9_000_000


async def test_input_files_are_mounted_and_readable() -> None:
    data = base64.b64encode(("x\n" * 5000).encode()).decode()
    part = {"type": "file", "file": {"filename": "in put.csv", "file_data": data}}
    content = [{"type": "text", "text": "count"}, part]
    texts = [
        python("len(open('in put.csv').readlines())"),
        call("service_list_files"),
        call("service_read_file", file_id="in put.csv", start=9996, end=20000),
        "5000.",
    ]
    async with agent_server(texts) as server:
        answer = await chat(server, messages=[{"role": "user", "content": content}])
        counted, listed, read = results(answer)
        assert counted["result"] == "5000"
        assert [file["name"] for file in listed["files"]] == ["in put.csv"]
        assert read["text"] == "x\nx\n" and read["total_chars"] == 10_000
        assert answer.get("files") is None


async def test_an_uploaded_file_is_mounted() -> None:
    async with agent_server([shell("cat n.txt"), "ok"]) as server:
        upload = await server.serving.http.post(
            "/v1/files", files={"file": ("n.txt", b"uploaded")}, data={"purpose": "user_data"}
        )
        part = {"type": "file", "file": {"file_id": upload.json()["id"]}}
        answer = await chat(server, messages=[{"role": "user", "content": [part]}])
        assert results(answer)[0]["stdout"] == "uploaded"


async def test_a_skill_is_mounted_read_only_and_named_to_the_model() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        manual = "---\nname: adder\ndescription: Adds numbers.\n---\nUse it."
        packed.writestr("adder/SKILL.md", manual)
        packed.writestr("adder/add.py", "print(1 + 1)")
    texts = [shell("cat skills/adder/SKILL.md", "python3 skills/adder/add.py"), "2."]
    texts += [shell("echo broken > skills/adder/SKILL.md"), "no"]
    async with agent_server(texts) as server:
        uploaded = await server.serving.http.post(
            "/v1/skills", files={"files": ("adder.zip", archive.getvalue())}
        )
        tool = with_skill(uploaded.json()["id"])
        response = {"input": "add", "tools": [tool]}
        answer = await server.serving.http.post("/v1/responses", json=response)
        assert answer.status_code == 200, answer.text
        assert "adder" in server.prompts[0] and "Adds numbers." in server.prompts[0]
        assert "Use it." in server.prompts[1] and '"stdout":"---' in server.prompts[1]
        await server.serving.http.post("/v1/responses", json=response)
        assert '"exit_code":0' not in server.prompts[3]


async def test_a_skill_of_a_later_turn_is_mounted_in_the_same_container() -> None:
    texts = [shell("ls"), "ok", shell("cat skills/adder/SKILL.md"), "ok"]
    manual = "---\nname: adder\ndescription: Adds numbers.\n---\nUse it."
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("adder/SKILL.md", manual)
    plain = {"type": "shell", "environment": {"type": "container_auto"}}
    async with agent_server(texts) as server:
        http = server.serving.http
        uploaded = await http.post("/v1/skills", files={"files": ("a.zip", archive.getvalue())})
        first = await http.post("/v1/responses", json={"input": "go", "tools": [plain]})
        body = {"input": "add", "tools": [with_skill(uploaded.json()["id"])]}
        body["previous_response_id"] = first.json()["id"]
        assert (await http.post("/v1/responses", json=body)).status_code == 200
        assert "Use it." in server.prompts[3]
        assert server.tools.running_containers == 1


async def test_an_unknown_skill_is_refused() -> None:
    async with agent_server([]) as server:
        body = {"input": "x", "tools": [with_skill("skill_none")]}
        answer = await server.serving.http.post("/v1/responses", json=body)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "skill_not_found"


@pytest.mark.parametrize(("decision", "ran"), [("approve", True), ("deny", False)])
async def test_a_call_waits_for_the_approval(decision: str, ran: bool) -> None:
    async with agent_server([python("print('ran')"), "ok"]) as server:
        http = server.serving.http
        body = ask(stream=True, agent_permission="ask")
        required: dict[str, Any] = {}
        text = ""
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                text += line + "\n"
                if line.startswith("data: {") and '"approval_id"' in line:
                    required = json.loads(line[6:])
                    decided = await http.post(
                        f"/v1/agent/approvals/{required['approval_id']}",
                        json={"decision": decision, "message": "not now"},
                    )
                    assert decided.json()["status"] in ("resolved", "queued")
        assert required["type"] == "agentic_tool_approval_required"
        assert required["tool"] == {
            "source": "built_in",
            "kind": "code_execution",
            "label": "Python code",
        }
        assert "print('ran')" in json.dumps(required["arguments"])
        assert required["session_id"] in text
        assert ('"stdout":"ran' in server.prompts[1]) == ran
        assert ("not now" in server.prompts[1]) == (not ran)
        again = await http.post(
            f"/v1/agent/approvals/{required['approval_id']}", json={"decision": "approve"}
        )
        assert (again.status_code, again.json()["status"]) == (404, "not_found")


@pytest.mark.parametrize("field", ["agent_permission", "code_execution_permission"])
async def test_ask_needs_a_stream(field: str) -> None:
    async with agent_server([]) as server:
        body = ask(**{field: "ask"})
        answer = await server.serving.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field


async def test_a_server_that_asks_refuses_unstreamed_requests_with_tools() -> None:
    settings = AgentSettings(enable_code_execution=True, agent_permission="ask")
    async with agent_server(["plain"], settings) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": [PYTHON]}
        answer = await server.serving.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "stream_required")
        del body["tools"]
        plain = await server.serving.http.post("/v1/chat/completions", json=body)
        assert plain.status_code == 200


async def test_the_limit_of_rounds_ends_the_answer() -> None:
    async with agent_server([shell(f"echo {i}") for i in range(9)]) as server:
        answer = await chat(server, max_tool_rounds=2)
        assert len(answer["agentic_tool_calls"]) == 2
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [PYTHON]}, "tools[0]"),
        ({"enable_shell": True}, "enable_shell"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
async def test_tools_that_are_off_are_refused_with_their_option(
    fields: dict[str, Any], param: str
) -> None:
    async with agent_server([], AgentSettings()) as server:
        body = {"messages": [{"role": "user", "content": "x"}], **fields}
        answer = await server.serving.http.post("/v1/chat/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unsupported_value")
        assert error["param"] == param and "--enable-" in error["message"]


async def test_several_choices_are_refused() -> None:
    async with agent_server([]) as server:
        answer = await server.serving.http.post("/v1/chat/completions", json=ask(n=2))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


async def test_a_client_that_leaves_ends_the_tool_with_all_its_processes() -> None:
    texts = [shell("(sleep 1000 &) ; setsid sleep 1000 & echo $$; sleep 1000")]
    async with agent_server(texts) as server:
        http = server.serving.http
        with pytest.raises(httpx.ReadTimeout):
            await http.post(
                "/v1/chat/completions",
                json=ask(session_id="left"),
                timeout=httpx.Timeout(30, read=1.0),
            )
        await server.serving.until(lambda: not _sleepers())


def _sleepers() -> list[str]:
    """Return the ids of processes `sleep 1000`."""
    found = []
    for process in os.listdir("/proc"):
        try:
            command = Path("/proc", process, "cmdline").read_bytes()
        except OSError:
            continue
        if command == b"sleep\x001000\x00":
            found.append(process)
    return found


async def test_metrics_count_rounds_and_calls() -> None:
    async with agent_server([shell("exit 3"), python("1"), "ok"], PYTHON_AND_SHELL) as server:
        await chat(server)
        text = (await server.serving.http.get("/metrics")).text
    assert "service_agent_rounds_total 2.0" in text
    assert 'service_agent_tool_calls_total{status="error",tool="service_shell"} 1.0' in text
    assert 'tool_calls_total{status="success",tool="service_execute_python"} 1.0' in text
    assert 'service_agent_tool_call_seconds_count{tool="service_shell"} 1.0' in text


async def test_many_sessions_run_side_by_side() -> None:
    texts = [python(f"print({i} * 2)") for i in range(8)]
    async with agent_server([*texts, *(["ok"] * 8)]) as server:
        answers = await asyncio.gather(*(chat(server) for _ in range(8)))
        outputs = [result["stdout"] for answer in answers for result in results(answer)]
        assert sorted(outputs) == sorted(f"{2 * i}\n" for i in range(8))
