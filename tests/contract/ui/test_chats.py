"""The web page's chats over HTTP: trees, answers that outlive their readers, stops, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from penstock.base.errors import EngineFault
from penstock.dialog import (
    GenerateRequest,
    Image,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    Text,
    TextDelta,
    TurnEnded,
)
from tests.support.servers.http_server import (
    CREATED,
    MODEL,
    USAGE,
    ScriptedLoop,
    Serving,
    Step,
    serving,
    spoken,
)
from tests.support.stores import opened, store_settings

CHATS = "/ui/api/chats"
HELLO = {"blocks": [{"type": "text", "text": "hello"}]}


def half_spoken(gate: asyncio.Event) -> Any:
    """Return a script that writes "half", then waits for `gate`."""

    def script(request: GenerateRequest) -> Iterable[Step]:
        yield RunStarted(MODEL, CREATED, 3)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "half")
        yield gate
        yield TextDelta(0, 0, " whole")
        yield PartEnded(0, 0, Text("half whole"))
        yield TurnEnded(0, "stop", USAGE)
        yield RunEnded("completed", USAGE)

    return script


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(script=spoken("Good ", "day")) as running:
        yield running


async def new_chat(http: httpx.AsyncClient, **settings: Any) -> str:
    made = await http.post(CHATS, json={"settings": settings})
    assert made.status_code == 200, made.text
    id: str = made.json()["id"]
    return id


async def send(http: httpx.AsyncClient, chat: str, body: dict[str, Any]) -> dict[str, Any]:
    sent = await http.post(f"{CHATS}/{chat}/messages", json=body)
    assert sent.status_code == 200, sent.text
    both: dict[str, Any] = sent.json()
    return both


async def followed(http: httpx.AsyncClient, message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the events of a message until its stream ends."""
    url = f"{CHATS}/{message['chat_id']}/messages/{message['id']}/events"
    answer = await http.get(url)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame for frame in answer.text.split("\n\n") if frame.startswith("event: ")]
    lines = [frame.split("\n") for frame in frames]
    return [(name.removeprefix("event: "), orjson.loads(data[6:])) for name, data in lines]


async def ended(http: httpx.AsyncClient, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message after it has ended."""
    await followed(http, message)
    whole = (await http.get(f"{CHATS}/{message['chat_id']}")).json()
    found: dict[str, Any] = next(m for m in whole["messages"] if m["id"] == message["id"])
    return found


def text_of(message: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in message["blocks"])


async def test_a_message_is_answered_and_both_are_kept(server: Serving) -> None:
    chat = await new_chat(server.http)
    both = await send(server.http, chat, HELLO)
    answer = await ended(server.http, both["answer"])
    assert (answer["status"], text_of(answer)) == ("done", "Good day")
    assert answer["parent"] == both["user"]["id"]
    assert answer["info"]["completion_tokens"] == 4 and answer["info"]["model"] == MODEL
    listed = (await server.http.get(CHATS)).json()
    assert [(c["id"], c["title"]) for c in listed["chats"]] == [(chat, "hello")]
    assert not listed["more"]


async def test_a_given_answer_is_kept_and_no_model_runs() -> None:
    loop = ScriptedLoop(spoken("never"))
    async with serving(models={MODEL: loop}) as server:
        http = server.http
        chat = await new_chat(http, voice="af_heart", image_size="512x512")
        files = {"file": ("speech.wav", b"RIFF....", "audio/wav")}
        spoken_file = (await http.post("/ui/api/attachments", files=files)).json()
        body = {**HELLO, "answer": [{"type": "attachment", "id": spoken_file["id"]}]}
        both = await send(http, chat, body)
        answer = await ended(http, both["answer"])
        assert loop.requests == []
        assert answer["parent"] == both["user"]["id"]
        assert (answer["role"], answer["status"]) == ("assistant", "done")
        assert answer["blocks"] == [{"type": "attachment", "attachment": spoken_file}]
        whole = (await http.get(f"{CHATS}/{chat}")).json()
        assert whole["chat"]["tail"] == answer["id"] and whole["chat"]["title"] == "hello"
        await http.delete(f"{CHATS}/{chat}")  # the file is the chat's
        assert (await http.get(spoken_file["url"])).status_code == 404


async def test_a_given_answer_with_an_unknown_file_is_refused(server: Serving) -> None:
    chat = await new_chat(server.http)
    body = {**HELLO, "answer": [{"type": "attachment", "id": "absent"}]}
    refused = await server.http.post(f"{CHATS}/{chat}/messages", json=body)
    assert refused.status_code == 404
    assert (await server.http.get(f"{CHATS}/{chat}")).json()["messages"] == []


async def test_changes_add_up_to_the_message(server: Serving) -> None:
    chat = await new_chat(server.http, logprobs=True, top_logprobs=1)
    both = await send(server.http, chat, HELLO)
    blocks: list[Any] = []
    names = []
    for name, data in await followed(server.http, both["answer"]):
        names.append(name)
        if name == "message":
            blocks = data["blocks"]
        elif name == "block":
            blocks[data["index"] :] = [data["block"]]
        elif name == "append":
            block = blocks[data["index"]]
            block["text"] += data["text"]
            block["tokens"] = [*(block.get("tokens") or []), *data["tokens"]]
    stored = await ended(server.http, both["answer"])
    assert blocks == stored["blocks"]
    assert (names[0], names[-1]) == ("message", "info")
    tokens = stored["blocks"][0]["tokens"]
    assert [token["text"] for token in tokens] == ["Good ", "day"]
    assert tokens[0]["top"][0]["text"] == "alt0"


async def test_the_request_has_the_branch_and_the_settings() -> None:
    loop = ScriptedLoop(spoken("yes"))
    async with serving(models={MODEL: loop}) as server:
        chat = await new_chat(server.http, system="Be brief.", temperature=0.5, max_tokens=9)
        first = await send(server.http, chat, HELLO)
        await ended(server.http, first["answer"])
        await send(server.http, chat, {**HELLO, "parent": first["answer"]["id"]})
        other = await send(server.http, chat, {"blocks": [{"type": "text", "text": "branch"}]})
        await ended(server.http, other["answer"])
    second, branch = loop.requests[1], loop.requests[2]
    shown = [(m.role, m.parts[0].text) for m in second.messages or ()]  # type: ignore[union-attr]
    assert shown == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("assistant", "yes"),
        ("user", "hello"),
    ]
    assert [m.role for m in branch.messages or ()] == ["system", "user"]
    assert (second.sampling.temperature, second.limits.max_tokens) == (0.5, 9)
    assert second.container == chat


async def test_an_answer_goes_on_without_readers_and_is_followed_later() -> None:
    gate = asyncio.Event()
    async with serving(script=half_spoken(gate)) as server:
        chat = await new_chat(server.http)
        both = await send(server.http, chat, HELLO)
        url = f"{CHATS}/{chat}/messages/{both['answer']['id']}/events"
        async with server.http.stream("GET", url) as stream:
            async for line in stream.aiter_lines():
                if "half" in line:
                    break
        again = asyncio.create_task(followed(server.http, both["answer"]))
        gate.set()
        events = await again
        assert events[-1][0] == "info"
        answer = await ended(server.http, both["answer"])
        assert (answer["status"], text_of(answer)) == ("done", "half whole")


async def test_a_stopped_answer_keeps_its_text_and_can_be_continued() -> None:
    gate = asyncio.Event()
    loop = ScriptedLoop(half_spoken(gate))
    async with serving(models={MODEL: loop}) as server:
        chat = await new_chat(server.http)
        both = await send(server.http, chat, HELLO)
        answer = f"{CHATS}/{chat}/messages/{both['answer']['id']}"
        while not loop.running:
            await asyncio.sleep(0.01)
        busy = await server.http.post(f"{answer}/answer", json={"continue": True})
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "answer_running")
        stopped = (await server.http.post(f"{answer}/stop")).json()
        assert (stopped["status"], text_of(stopped)) == ("stopped", "half")
        assert loop.running == 0 and loop.cut_short == 1
        loop.script = spoken(" more")
        await server.http.post(f"{answer}/answer", json={"continue": True})
        whole = await ended(server.http, both["answer"])
        assert (whole["status"], text_of(whole)) == ("done", "half more")
        assert loop.requests[1].answer_prefix == "half"
        edited = await server.http.patch(answer, json={"text": "mine"})
        assert text_of(edited.json()) == "mine"


async def test_two_stops_at_once_are_one() -> None:
    async with serving(script=half_spoken(asyncio.Event())) as server:
        chat = await new_chat(server.http)
        both = await send(server.http, chat, HELLO)
        url = f"{CHATS}/{chat}/messages/{both['answer']['id']}/stop"
        followers = [asyncio.create_task(followed(server.http, both["answer"])) for _ in range(2)]
        stops = await asyncio.gather(*(server.http.post(url) for _ in range(5)))
        assert {stop.json()["status"] for stop in stops} == {"stopped"}
        ends = [(await follower)[-1] for follower in followers]
        assert [(name, data["status"]) for name, data in ends] == [("info", "stopped")] * 2


async def test_an_answer_of_an_unloaded_model_says_why() -> None:
    async with serving() as server:
        chat = await new_chat(server.http)
        await server.http.post("/v1/models/unload", json={"model_id": MODEL})
        answer = await ended(server.http, (await send(server.http, chat, HELLO))["answer"])
    assert answer["status"] == "failed"
    assert "unloaded" in answer["info"]["error"]["message"]


async def test_regenerating_adds_a_sibling_and_shows_it(server: Serving) -> None:
    chat = await new_chat(server.http)
    both = await send(server.http, chat, HELLO)
    await ended(server.http, both["answer"])
    url = f"{CHATS}/{chat}/messages/{both['user']['id']}/answer"
    sibling = (await server.http.post(url, json={})).json()
    assert sibling["parent"] == both["user"]["id"]
    await ended(server.http, sibling)
    whole = (await server.http.get(f"{CHATS}/{chat}")).json()
    assert whole["chat"]["tail"] == sibling["id"] and len(whole["messages"]) == 3
    body = {"tail": both["answer"]["id"]}
    changed = (await server.http.patch(f"{CHATS}/{chat}", json=body)).json()
    assert changed["tail"] == both["answer"]["id"]


async def test_an_engine_fault_leaves_the_text_and_says_so() -> None:
    def script(request: GenerateRequest) -> Iterable[Step]:
        yield RunStarted(MODEL, CREATED, 3)
        yield PartStarted(0, 0, "reasoning")
        yield ReasoningDelta(0, 0, "thinking")
        yield EngineFault("the engine has stopped")

    async with serving(script=script) as server:
        chat = await new_chat(server.http)
        answer = await ended(server.http, (await send(server.http, chat, HELLO))["answer"])
    assert answer["status"] == "failed"
    assert answer["info"]["error"]["message"] == "the engine has stopped"
    assert answer["blocks"][0]["text"] == "thinking"


async def test_a_stopped_server_fails_its_answers_and_keeps_all_chats(tmp_path: Path) -> None:
    async with opened(store_settings(tmp_path)) as store:
        async with serving(script=half_spoken(asyncio.Event()), store=store) as server:
            chat = await new_chat(server.http)
            both = await send(server.http, chat, HELLO)
            while server.services.models[MODEL].status != "loaded":
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
        async with serving(script=spoken("again"), store=store) as server:
            answer = await ended(server.http, both["answer"])
            assert answer["status"] == "failed"
            assert answer["info"]["error"]["message"] == "the server was stopped"


async def test_attachments_reach_the_model_and_are_sent_safely() -> None:
    loop = ScriptedLoop(spoken("seen"))
    async with serving(models={MODEL: loop}) as server:
        http = server.http
        chat = await new_chat(http)
        files = {"file": ("../pic.png", b"\x89PNG....", "image/png")}
        picture = (await http.post("/ui/api/attachments", files=files)).json()
        page = (
            await http.post(
                "/ui/api/attachments", files={"file": ("x.svg", b"<svg/>", "image/svg+xml")}
            )
        ).json()
        blocks = [{"type": "attachment", "id": picture["id"]}, {"type": "text", "text": "what?"}]
        await ended(http, (await send(http, chat, {"blocks": blocks}))["answer"])
        assert (loop.requests[0].messages or ())[0].parts == (
            Image(data=b"\x89PNG....", mime_type="image/png"),
            Text("what?"),
        )
        shown = await http.get(picture["url"])
        assert (shown.headers["content-type"], shown.content) == ("image/png", b"\x89PNG....")
        assert shown.headers["content-disposition"] == "inline; filename*=UTF-8''pic.png"
        downloaded = await http.get(page["url"])
        assert downloaded.headers["content-type"] == "application/octet-stream"
        assert downloaded.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in downloaded.headers["content-security-policy"]
        assert (await http.delete(f"{CHATS}/{chat}")).json()["deleted"]
        assert (await http.get(picture["url"])).status_code == 404


async def test_an_exported_chat_is_imported_under_new_ids(server: Serving) -> None:
    http = server.http
    chat = await new_chat(http, temperature=0.1)
    files = {"file": ("a.txt", b"text", "text/plain")}
    attached = (await http.post("/ui/api/attachments", files=files)).json()
    blocks = [{"type": "attachment", "id": attached["id"]}, {"type": "text", "text": "hi"}]
    await ended(http, (await send(http, chat, {"blocks": blocks}))["answer"])
    document = (await http.get(f"{CHATS}/{chat}/export")).json()
    await http.delete(f"{CHATS}/{chat}")
    imported = (await http.post(f"{CHATS}/import", json=document)).json()
    assert imported["id"] != chat and imported["settings"] == {"temperature": 0.1}
    whole = (await http.get(f"{CHATS}/{imported['id']}")).json()
    assert [text_of(message) for message in whole["messages"]] == ["hi", "Good day"]
    copy = whole["messages"][0]["blocks"][0]["attachment"]
    assert (await http.get(copy["url"])).content == b"text"
    assert imported["tail"] == whole["messages"][1]["id"]
    broken = {**document, "attachments": []}
    refused = await http.post(f"{CHATS}/import", json=broken)
    assert refused.status_code == 400


async def test_search_and_rename(server: Serving) -> None:
    http = server.http
    chat = await new_chat(http)
    await ended(http, (await send(http, chat, HELLO))["answer"])
    found = (await http.get(CHATS, params={"q": "GOOD"})).json()["chats"]
    assert [hit["id"] for hit in found] == [chat]
    assert (await http.get(CHATS, params={"q": "absent"})).json()["chats"] == []
    await http.patch(f"{CHATS}/{chat}", json={"title": "Renamed"})
    assert (await http.get(f"{CHATS}/{chat}")).json()["chat"]["title"] == "Renamed"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"temperature": 9}, "temperature"),
        ({"no_such": 1}, "settings.no_such"),
        ({"tools": {"telepathy": True}}, "settings.tools"),
        ({"tools": {"code": "yes"}}, "settings.tools"),
        ({"system": 3}, "settings.system"),
        ({"voice": 3}, "settings.voice"),
        ({"model": "absent"}, "model"),
        ({"messages": []}, "settings.messages"),
    ],
)
async def test_wrong_settings_are_refused_by_name(
    server: Serving, settings: dict[str, Any], field: str
) -> None:
    refused = await server.http.post(CHATS, json={"settings": settings})
    assert refused.status_code in (400, 404)
    assert refused.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/nope", None),
        ("PATCH", "/nope", {"title": "x"}),
        ("POST", "/nope/messages", HELLO),
        ("GET", "/nope/messages/x/events", None),
        ("POST", "/nope/messages/x/stop", None),
        ("GET", "/nope/export", None),
    ],
)
async def test_unknown_chats_are_404(server: Serving, method: str, path: str, body: Any) -> None:
    answer = await server.http.request(method, CHATS + path, json=body)
    assert answer.status_code == 404, answer.text


async def test_a_message_of_another_chat_is_no_parent(server: Serving) -> None:
    first, second = await new_chat(server.http), await new_chat(server.http)
    both = await send(server.http, first, HELLO)
    await ended(server.http, both["answer"])
    body = {**HELLO, "parent": both["answer"]["id"]}
    refused = await server.http.post(f"{CHATS}/{second}/messages", json=body)
    assert refused.status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
async def test_other_web_sites_are_refused(server: Serving, headers: dict[str, str]) -> None:
    for method in ("GET", "POST"):
        refused = await server.http.request(method, CHATS, headers=headers, json={})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "cross_site_request"
        assert "access-control-allow-origin" not in refused.headers


async def test_the_page_itself_is_not_refused(server: Serving) -> None:
    base = str(server.http.base_url).rstrip("/")
    headers = {"sec-fetch-site": "same-origin", "origin": base}
    assert (await server.http.post(CHATS, json={}, headers=headers)).status_code == 200


async def test_a_form_cannot_send_a_body(server: Serving) -> None:
    headers = {"content-type": "text/plain"}
    refused = await server.http.post(CHATS, content=b"{}", headers=headers)
    assert refused.status_code == 400


async def test_info_describes_the_server(server: Serving) -> None:
    info = (await server.http.get("/ui/api/info")).json()
    assert info["default_model"] == MODEL
    assert info["models"][0]["status"] == "loaded"
    assert info["tools"] == {"search": False, "code": False, "shell": False, "mcp": []}


async def test_requests_of_the_api_are_logged_and_those_of_the_page_are_not(
    server: Serving,
) -> None:
    await server.http.get("/ui/api/info")
    body = {"messages": [{"role": "user", "content": "hi"}]}
    await server.http.post("/v1/chat/completions", json=body)
    answer = (await server.http.get("/ui/api/requests")).json()
    logged = answer["requests"]
    assert [(entry["path"], entry["status"]) for entry in logged] == [("/v1/chat/completions", 200)]
    assert logged[0]["model"] == MODEL and logged[0]["prompt_tokens"] == 7
    seen = {"after": logged[0]["number"], "process": answer["process"]}
    later = await server.http.get("/ui/api/requests", params=seen)
    assert later.json()["requests"] == []
    other = await server.http.get("/ui/api/requests", params=seen | {"process": "before"})
    assert other.json() == answer
    metrics = (await server.http.get("/metrics")).text
    assert "/ui" not in metrics


async def test_only_the_catalogue_may_be_pulled(server: Serving) -> None:
    catalogue = (await server.http.get("/ui/api/models/catalogue")).json()
    assert any(entry["name"].startswith("smollm2") for entry in catalogue)
    refused = await server.http.post("/ui/api/models/pull", json={"model": "someone/something"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "pull_not_allowed")
