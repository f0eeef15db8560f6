"""Endpoints of `/v1/skills` and of skill versions, in the formats of OpenAI and Anthropic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from penstock.api.http.multipart import MultipartEvent, PartHead, read_multipart
from penstock.api.observability.request_record import record_of_request
from penstock.api.routes.answers import query_of, send_value
from penstock.api.routes.anthropic import ACTIVE, is_anthropic_client, rfc3339
from penstock.api.routes.paging import in_order, page_of
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest, NotFound
from penstock.store.errors import shorten
from penstock.store.records import SkillBundle, SkillVersion, StoredSkill, version_id

UPLOAD_FIELDS: Final = ("files", "file", "files[]")
SOURCE: Final = "custom"
LATEST: Final = "latest"
MAX_DIGITS: Final = 9


class ListSkills:
    """GET: returns a page of the skills. Query parameter `source`: "custom" selects all skills, any
    other value selects none."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope)
        skills = await self._services.store.skills.list()
        if (query.get("source") or SOURCE) != SOURCE:
            skills = []
        page, more = page_of(in_order(skills, query), query, lambda skill: skill.id)
        if not _wants_anthropic_shape(scope):
            ends = {"first_id": page[0].id, "last_id": page[-1].id} if page else {}
            data = [_skill(skill) for skill in page]
            await send_value({"object": "list", "data": data, "has_more": more, **ends}, send)
            return
        data = [_anthropic_skill(skill) for skill in page]
        following = page[-1].id if more else None
        await send_value({"data": data, "has_more": more, "next_page": following}, send)


class CreateSkill:
    """POST: stores a skill, uploaded as a zip archive or as the files of its folder."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bundle = await _read_bundle(self._services, scope, receive)
        skill = await self._services.store.skills.create(bundle)
        await send_value(
            _anthropic_skill(skill) if _wants_anthropic_shape(scope) else _skill(skill), send
        )


class GetSkill:
    """GET: returns the metadata of a skill. Raises NotFound."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        skill_id: str = scope["path_params"]["skill_id"]
        skill = await self._services.store.skills.get(skill_id)
        if skill is None:
            raise NotFound(f"Skill '{shorten(skill_id)}' not found", code="skill_not_found")
        await send_value(
            _anthropic_skill(skill) if _wants_anthropic_shape(scope) else _skill(skill), send
        )


class DeleteSkill:
    """DELETE: deletes a skill with all its versions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["skill_id"]
        await self._services.store.skills.delete(id)
        deleted = {"id": id, "object": "skill.deleted", "deleted": True}
        await send_value(
            {"id": id, "type": "skill_deleted"} if _wants_anthropic_shape(scope) else deleted, send
        )


class GetSkillVersion:
    """GET: returns the metadata of a skill version. The path names its number, its id or
    `latest`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        skill_id, number = _named_version(scope)
        version = await self._services.store.skills.version(skill_id, number)
        shape = _anthropic_version if _wants_anthropic_shape(scope) else _version
        await send_value(shape(version), send)


class DeleteSkillVersion:
    """DELETE: deletes a version of a skill; 409 if it is the only version."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        skills = self._services.store.skills
        version = await skills.version(*_named_version(scope))
        await skills.delete_version(version.skill_id, version.version)
        if _wants_anthropic_shape(scope):
            await send_value({"id": version.id, "type": "skill_version_deleted"}, send)
            return
        deleted = {"id": version.id, "object": "skill.version.deleted", "deleted": True}
        await send_value({**deleted, "version": str(version.version)}, send)


class ListSkillVersions:
    """GET: returns a page of a skill's versions, always in Anthropic's format."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope)
        versions = await self._services.store.skills.versions(scope["path_params"]["skill_id"])
        page, more = page_of(in_order(versions, query), query, lambda version: version.id)
        answer = {
            "object": "list",
            "data": [_anthropic_version(version) for version in page],
            "has_more": more,
            "next_page": page[-1].id if more else None,
        }
        await send_value(answer, send)


class AddSkillVersion:
    """POST: stores a new version of a skill."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        skill_id = scope["path_params"]["skill_id"]
        bundle = await _read_bundle(self._services, scope, receive)
        version = await self._services.store.skills.add_version(skill_id, bundle)
        shape = _anthropic_version if _wants_anthropic_shape(scope) else _version
        await send_value(shape(version), send)


async def _read_bundle(services: Services, scope: Scope, receive: Receive) -> SkillBundle:
    record = record_of_request()
    async with aclosing(services.bodies.stream_buffered(record, receive)) as body:
        uploads = await _uploads(read_multipart(scope, body))
    return await asyncio.to_thread(_read_uploads, uploads)


def _read_uploads(uploads: list[tuple[str, bytes]]) -> SkillBundle:
    # Imported here, because only this request needs the archive libraries.
    from penstock.store.skill_bundles import read_bundle

    return read_bundle(uploads)


async def _uploads(events: AsyncIterator[MultipartEvent]) -> list[tuple[str, bytes]]:
    """Return (path, data) of each uploaded file, in order. Raises InvalidRequest."""
    uploads: list[tuple[str, bytearray]] = []
    is_upload = False
    async for event in events:
        if isinstance(event, PartHead):
            is_upload = event.name in UPLOAD_FIELDS
            if is_upload and event.filename is None:
                raise InvalidRequest("`files` must be files with names", field="files")
            if is_upload:
                uploads.append((event.filename or "", bytearray()))
        elif is_upload:
            uploads[-1][1].extend(event)
    return [(path, bytes(data)) for path, data in uploads]


def _named_version(scope: Scope) -> tuple[str, int | None]:
    """Return (skill id, version number) from the path; the number is None for `latest`. Raises
    NotFound."""
    skill_id: str = scope["path_params"]["skill_id"]
    name: str = scope["path_params"]["version"]
    if name == LATEST:
        return skill_id, None
    number = name.removeprefix(f"{skill_id}_v")
    if not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS):
        raise NotFound(
            f"Skill '{shorten(skill_id)}' has no version '{shorten(name)}'", code="skill_not_found"
        )
    return skill_id, int(number)


def _wants_anthropic_shape(scope: Scope) -> bool:
    return "source" in query_of(scope) or is_anthropic_client(scope)


def _skill(skill: StoredSkill) -> dict[str, Any]:
    return {
        "id": skill.id,
        "object": "skill",
        "created_at": skill.created_at,
        "name": skill.name,
        "description": skill.description,
        "latest_version": skill.latest_version,
    }


def _anthropic_skill(skill: StoredSkill) -> dict[str, Any]:
    return {
        "id": skill.id,
        "type": "skill",
        "created_at": rfc3339(skill.created_at),
        "updated_at": rfc3339(skill.updated_at),
        "display_title": skill.name,
        "display_name": skill.name,
        "lifecycle": ACTIVE,
        "latest_version": str(skill.latest_version),
        "latest_version_id": version_id(skill.id, skill.latest_version),
        "source": SOURCE,
    }


def _version(version: SkillVersion) -> dict[str, Any]:
    return {
        "id": version.id,
        "object": "skill.version",
        "skill_id": version.skill_id,
        "created_at": version.created_at,
        "version": version.version,
        "name": version.name,
        "description": version.description,
    }


def _anthropic_version(version: SkillVersion) -> dict[str, Any]:
    return {
        "id": version.id,
        "type": "skill_version",
        "skill_id": version.skill_id,
        "created_at": rfc3339(version.created_at),
        "version": str(version.version),
        "name": version.name,
        "description": version.description,
        "directory": version.directory,
    }
