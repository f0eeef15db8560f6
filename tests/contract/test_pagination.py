"""What a query may ask of a list: a page, its order, and what it must not."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.servers.http_server import Serving
from tests.support.servers.responses_server import answering

ANTHROPIC_HEADERS = {"anthropic-version": "2023-06-01"}
UNKNOWN = "file-none"


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with answering() as running:
        yield running


async def listed(server: Serving, path: str) -> list[str]:
    answer = await server.http.get(path)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["data"]]


async def anthropic_page(server: Serving, path: str) -> tuple[list[str], bool]:
    """What a client of Anthropic's API is listed, and whether there is more."""
    async with httpx.AsyncClient(base_url=server.url, headers=ANTHROPIC_HEADERS) as client:
        answer = (await client.get(path)).json()
    return [item["id"] for item in answer["data"]], answer["has_more"]


async def files(server: Serving, count: int) -> list[str]:
    """Their ids, the newest first."""
    made = [
        await server.openai.files.create(file=(f"{n}.txt", b""), purpose="user_data")
        for n in range(count)
    ]
    return [file.id for file in reversed(made)]


async def skill_of_versions(server: Serving, count: int) -> str:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("adder/SKILL.md", "---\nname: adder\ndescription: Adds.\n---\nAdd.")
    sent: Any = {"files": ("a.zip", data.getvalue())}
    path = "/v1/skills"
    id = ""
    for _ in range(count):
        answer = await server.http.post(path, files=sent)
        id = id or answer.json()["id"]
        path = f"/v1/skills/{id}/versions"
    return id


async def paths(server: Serving) -> list[str]:
    """One of each list that knows an order."""
    id = await skill_of_versions(server, 2)
    response = await server.openai.responses.create(model="default", input="hi")
    return [
        "/v1/files",
        "/v1/containers/c/files",
        "/v1/skills",
        f"/v1/skills/{id}/versions",
        f"/v1/responses/{response.id}/input_items",
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("order=x", "order"),
        ("order=", "order"),
        ("order=ASC", "order"),
        ("limit=0", "limit"),
        ("limit=", "limit"),
        ("limit=1.0", "limit"),
        ("limit=99999999999999999999", "limit"),
        (f"after={UNKNOWN}", "after"),
        ("after=", "after"),
        (f"before={UNKNOWN}", "before"),
    ],
)
async def test_what_is_no_page_is_refused_of_each_list(server, query, param):
    for path in await paths(server):
        answer = await server.http.get(f"{path}?{query}")
        assert answer.status_code == 400, path
        assert answer.json()["error"]["param"] == param


async def test_page_before_an_item(server):
    ids = await files(server, 5)
    assert await listed(server, f"/v1/files?before={ids[3]}&limit=2") == ids[1:3]
    assert await listed(server, f"/v1/files?before={ids[3]}&limit=2&order=asc") == [ids[4]]
    assert await listed(server, f"/v1/files?after={ids[0]}&before={ids[3]}") == ids[1:3]
    assert await listed(server, f"/v1/files?after={ids[3]}&before={ids[1]}") == []
    answer = (await server.http.get(f"/v1/files?before={ids[3]}&limit=3")).json()
    assert [item["id"] for item in answer["data"]] == ids[:3] and not answer["has_more"]
    answer = (await server.http.get(f"/v1/files?before={ids[3]}&limit=2")).json()
    assert answer["has_more"] and answer["first_id"] == ids[1]


async def test_older_clients_of_the_second_vendor_page_backwards(server):
    ids = await files(server, 3)
    assert await anthropic_page(server, f"/v1/files?before_id={ids[2]}&limit=1") == ([ids[1]], True)
    assert await anthropic_page(server, f"/v1/files?after_id={ids[1]}&limit=1") == ([ids[2]], False)


async def test_files_are_listed_by_their_ids(server):
    ids = await files(server, 3)
    query = f"ids[]={ids[0]}&ids[]={ids[2]}&ids[]={UNKNOWN}"
    assert await anthropic_page(server, f"/v1/files?{query}") == ([ids[0], ids[2]], False)


async def test_skills_and_versions_come_in_the_order_asked_for(server):
    first, second = [await skill_of_versions(server, n) for n in (1, 3)]
    assert await listed(server, "/v1/skills") == [second, first]
    assert await listed(server, "/v1/skills?order=asc") == [first, second]
    newest = await listed(server, f"/v1/skills/{second}/versions")
    assert await listed(server, f"/v1/skills/{second}/versions?order=asc") == newest[::-1]


async def test_cards_of_models_come_in_pages(server):
    whole = await listed(server, "/v1/models")
    assert await anthropic_page(server, "/v1/models?limit=1") == (whole[:1], True)
    assert await anthropic_page(server, f"/v1/models?after_id={whole[0]}") == (whole[1:], False)
    assert (await server.http.get("/v1/models?limit=0")).status_code == 400


@pytest.mark.parametrize("path", ["", "/input_items"])
@pytest.mark.parametrize("name", ["include", "include[]"])
async def test_what_an_answer_cannot_include_is_refused(server, path, name):
    response = await server.openai.responses.create(model="default", input="hi")
    url = f"/v1/responses/{response.id}{path}?{name}=reasoning.encrypted_content&{name}="
    known = await server.http.get(url + "message.input_image.image_url")
    assert known.status_code == 200
    refused = await server.http.get(url + "everything")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "include[1]"


@pytest.mark.parametrize(
    ("query", "param"),
    [("include_obfuscation=maybe", "include_obfuscation"), ("starting_after=x", "starting_after")],
)
async def test_query_of_a_response_is_checked_without_a_stream_too(server, query, param):
    response = await server.openai.responses.create(model="default", input="hi")
    answer = await server.http.get(f"/v1/responses/{response.id}?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
