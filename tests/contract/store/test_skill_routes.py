"""`/v1/skills` and its versions, in the shapes of OpenAI and Anthropic."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.servers.http_server import Serving, serving
from tests.support.stores import opened, store_settings

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
ANTHROPIC_HEADERS = {"anthropic-version": "2023-06-01"}


def manifest(description: str = "Adds numbers.") -> bytes:
    return f"---\nname: adder\ndescription: {description}\n---\n".encode()


def archive(description: str = "Adds numbers.") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("adder/SKILL.md", manifest(description))
        file.writestr("adder/add.py", b"print(1)")
    return packed.getvalue()


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


async def upload(server: Serving, path: str = "/v1/skills", **more: Any) -> Any:
    files = more.pop("files", {"files": ("adder.zip", archive())})
    answer = await server.http.post(path, files=files, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_skill_has_the_first_vendors_shape(server: Serving) -> None:
    skill = await upload(server)
    assert re.fullmatch(r"skill_[0-9a-f]{32}", skill.pop("id"))
    assert isinstance(skill.pop("created_at"), int)
    assert skill == {
        "object": "skill",
        "name": "adder",
        "description": "Adds numbers.",
        "latest_version": 1,
    }
    listed = (await server.http.get("/v1/skills")).json()
    assert (listed["object"], len(listed["data"])) == ("list", 1)


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        (ANTHROPIC_HEADERS, ""),
        ({"anthropic-beta": "skills-2025-10-02"}, ""),
        ({"compat-version": "1"}, ""),
        ({}, "?source=custom"),
    ],
)
async def test_skill_has_the_second_vendors_shape(
    server: Serving, headers: dict[str, str], query: str
) -> None:
    skill = await upload(server, f"/v1/skills{query}", headers=headers)
    assert RFC3339.fullmatch(skill["created_at"]) and RFC3339.fullmatch(skill["updated_at"])
    fixed = {key: skill[key] for key in ("type", "display_title", "latest_version", "source")}
    assert fixed == {
        "type": "skill",
        "display_title": "adder",
        "latest_version": "1",
        "source": "custom",
    }
    listed = (await server.http.get(f"/v1/skills{query}", headers=headers)).json()
    assert listed == {"data": [skill], "has_more": False, "next_page": None}


async def test_files_of_a_folder_may_be_sent_one_by_one(server: Serving) -> None:
    for field in ("files", "files[]", "file"):
        files = [
            (field, ("adder/SKILL.md", manifest())),
            (field, ("adder/scripts/add.py", b"print(1)")),
        ]
        skill = await upload(server, files=files)
        bundle = await server.services.store.skills.read(skill["id"])
        assert bundle.files["scripts/add.py"] == b"print(1)"


async def test_versions_are_numbered_and_listed(server: Serving) -> None:
    id = (await upload(server))["id"]
    path = f"/v1/skills/{id}/versions"
    second = await upload(server, path, files={"files": ("a.zip", archive("Better."))})
    assert second["id"] == f"{id}_v2"
    assert (second["object"], second["version"]) == ("skill.version", 2)
    third = await upload(server, path, headers=ANTHROPIC_HEADERS)
    assert (third["type"], third["version"], third["directory"]) == ("skill_version", "3", "adder")
    listed = (await server.http.get(path)).json()
    assert [version["version"] for version in listed["data"]] == ["3", "2", "1"]
    assert listed["data"][0] == third
    skill = (await server.http.get("/v1/skills")).json()["data"][0]
    assert skill["latest_version"] == 3


async def test_lists_come_in_pages(server: Serving) -> None:
    ids = [(await upload(server))["id"] for _ in range(3)][::-1]
    first = (await server.http.get("/v1/skills?limit=2&source=custom")).json()
    assert [skill["id"] for skill in first["data"]] == ids[:2] and first["has_more"]
    rest = await server.http.get(f"/v1/skills?limit=2&source=custom&page={first['next_page']}")
    assert [skill["id"] for skill in rest.json()["data"]] == ids[2:]
    assert rest.json()["next_page"] is None
    after = (await server.http.get(f"/v1/skills?after={ids[0]}")).json()
    assert [skill["id"] for skill in after["data"]] == ids[1:] and not after["has_more"]
    assert (await server.http.get("/v1/skills?source=anthropic")).json()["data"] == []


async def test_unknown_skill_is_404(server: Serving) -> None:
    for id in ("skill_none", "%00"):
        path = f"/v1/skills/{id}/versions"
        answer = await server.http.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "skill_not_found")
        made = await server.http.post(path, files={"files": ("a.zip", archive())})
        assert made.status_code == 404


@pytest.mark.parametrize(
    "files",
    [
        {"other": ("adder.zip", archive())},
        {"files": ("adder.zip", b"PK\x03\x04 broken")},
        {"files": ("../SKILL.md", manifest())},
        {"files": (None, manifest())},
    ],
)
async def test_bad_skill_is_a_400_and_is_not_kept(server: Serving, files: Any) -> None:
    answer = await server.http.post("/v1/skills", files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "files")
    assert (await server.http.get("/v1/skills")).json()["data"] == []


async def test_skills_lie_in_their_own_folder(tmp_path: Path) -> None:
    settings = store_settings(tmp_path, skills_dir=str(tmp_path / "skills"))
    async with opened(settings) as store, serving(store=store) as server:
        skill = await upload(server)
        (lying,) = (path for path in tmp_path.rglob("*.zip"))
        assert lying.is_relative_to(tmp_path / "skills")
        assert (await store.skills.read(skill["id"])).files["add.py"] == b"print(1)"


async def test_official_clients_get_and_delete_skills_and_versions(server: Serving) -> None:
    """Anthropic's client finds all fields that its types require."""
    skill = await server.openai.skills.create(files=("adder.zip", archive()))
    more = ("adder.zip", archive("Better."))
    second = await server.openai.skills.versions.create(skill.id, files=more)
    assert (await server.openai.skills.retrieve(skill.id)).description == "Better."
    one = await server.openai.skills.versions.retrieve("1", skill_id=skill.id)
    assert (one.id, one.description) == (f"{skill.id}_v1", "Adds numbers.")
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
    async with client:
        skills = client.beta.skills
        (listed,) = [found async for found in skills.list()]
        assert listed == await skills.retrieve(skill.id)
        assert (listed.display_name, listed.latest_version_id) == ("adder", second.id)
        assert listed.lifecycle == "active"  # type: ignore[attr-defined]
        version = await skills.versions.retrieve(listed.latest_version_id, skill_id=skill.id)
        assert (version.id, version.description) == (second.id, "Better.")
        latest = await skills.versions.retrieve("latest", skill_id=skill.id)
        assert latest == version
        gone = await skills.versions.delete(version.id, skill_id=skill.id)
        assert (gone.id, gone.type) == (second.id, "skill_version_deleted")
        now = await skills.retrieve(skill.id)
        assert now.latest_version_id == one.id
        third = await skills.versions.create(skill.id, files=[more])
        assert third.id == f"{skill.id}_v3"  # no number is used twice
        (model, *_) = [found async for found in client.models.list()]
        assert (model.lifecycle, model.display_name) == ("active", model.id)
        assert model.max_input_tokens == 2048
    deleted = await server.openai.skills.versions.delete("3", skill_id=skill.id)
    assert (deleted.id, deleted.deleted, deleted.version) == (third.id, True, "3")
    assert (await server.openai.skills.retrieve(skill.id)).description == "Adds numbers."
    with pytest.raises(openai.ConflictError, match="delete the skill"):
        await server.openai.skills.versions.delete("1", skill_id=skill.id)
    whole = await server.openai.skills.delete(skill.id)
    assert (whole.id, whole.object, whole.deleted) == (skill.id, "skill.deleted", True)
    assert (await server.http.get("/v1/skills")).json()["data"] == []


async def test_anthropics_client_deletes_a_skill(server: Serving) -> None:
    id = (await upload(server))["id"]
    answer = await server.http.delete(f"/v1/skills/{id}", headers=ANTHROPIC_HEADERS)
    assert answer.json() == {"id": id, "type": "skill_deleted"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    "name", ["", "/versions/9", "/versions/x", "/versions/%00", "/versions/-1"]
)
async def test_what_is_not_there_is_404_and_deletes_nothing(
    server: Serving, method: str, name: str
) -> None:
    id = (await upload(server))["id"]
    wanted = f"/v1/skills/{id}{name}" if name else "/v1/skills/skill_none"
    answer = await server.http.request(method, wanted)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "skill_not_found")
    assert len((await server.http.get("/v1/skills")).json()["data"]) == 1


async def test_a_deleted_skill_makes_room_for_another(tmp_path: Path) -> None:
    size = len(archive())
    settings = store_settings(
        tmp_path, skills_dir=str(tmp_path / "skills"), max_skills_bytes=size + size // 2
    )
    async with opened(settings) as store, serving(store=store) as server:
        first = await upload(server)
        full = await server.http.post("/v1/skills", files={"files": ("a.zip", archive())})
        assert (full.status_code, full.json()["error"]["code"]) == (507, "storage_full")
        assert (await server.http.delete(f"/v1/skills/{first['id']}")).status_code == 200
        assert [*tmp_path.rglob("*.zip")] == []
        await upload(server)
