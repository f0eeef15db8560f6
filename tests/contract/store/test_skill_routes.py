"""`/v1/skills` and its versions, in both vendors' shapes."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_serving import Serving, serving
from stores import opened, store_settings

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
VENDOR = {"anthropic-version": "2023-06-01"}


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
        (VENDOR, ""),
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
    third = await upload(server, path, headers=VENDOR)
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
