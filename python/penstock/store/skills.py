"""Uploaded skills and their versions. A version is never changed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from penstock.base.errors import Conflict, NotFound, ServiceError
from penstock.base.ids import new_id
from penstock.store.blobs import Blobs
from penstock.store.clock import Clock
from penstock.store.errors import StorageFull, shorten
from penstock.store.records import SkillBundle, SkillVersion, StoredSkill
from penstock.store.sql.database import Database
from penstock.store.sql.faults import translated_faults
from penstock.store.sql.schema import skill_versions, skills

FOLDER: Final = "skills"
# All files in an archive get this date, so that equal files produce equal archives.
ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)

_SKILL: Final = skills.c
_VERSION: Final = skill_versions.c
# The number of a skill's latest remaining version. `skills.latest_version` is not decremented when
# the latest version is deleted, so that no number is used twice.
_NEWEST: Final = (
    select(func.max(_VERSION.version))
    .where(_VERSION.skill_id == _SKILL.id)
    .scalar_subquery()
    .label("newest")
)
_SKILLS: Final = select(skills, _NEWEST)
_TOTAL_BYTES: Final = select(func.coalesce(func.sum(_VERSION.size_bytes), 0))

_T = TypeVar("_T")


class _Body(NamedTuple):
    """The stored archive of a skill version: its name in Blobs and its size."""

    name: str
    size_bytes: int


class Skills:
    """Stores the skills of all API processes that share the store."""

    def __init__(self, database: Database, blobs: Blobs, clock: Clock, max_bytes: int) -> None:
        """`max_bytes`: the limit on the total size of all versions of all skills."""
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._max_bytes = max_bytes

    async def create(self, bundle: SkillBundle) -> StoredSkill:
        """Store a new skill with version 1. Raises StorageFull if the quota is exceeded."""
        now = self._clock()
        skill = StoredSkill(
            id=new_id("skill_"),
            created_at=now,
            updated_at=now,
            name=bundle.name,
            description=bundle.description,
            latest_version=1,
        )
        values = {name: getattr(skill, name) for name in skill.__struct_fields__}

        def work(connection: Connection, body: _Body) -> StoredSkill:
            connection.execute(insert(skills).values(values))
            self._insert_version(connection, skill.id, 1, bundle, body)
            return skill

        return await self._store(bundle, work)

    async def add_version(self, skill_id: str, bundle: SkillBundle) -> SkillVersion:
        """Store a new version of a skill. Raises NotFound (`skill_not_found`), and StorageFull if
        the quota is exceeded."""
        await self._skill(skill_id)
        values = {
            "updated_at": self._clock(),
            "name": bundle.name,
            "description": bundle.description,
            "latest_version": _SKILL.latest_version + 1,
        }
        change = update(skills).where(_SKILL.id == skill_id).values(values)

        def work(connection: Connection, body: _Body) -> SkillVersion:
            version = connection.execute(change.returning(_SKILL.latest_version)).scalar_one()
            return self._insert_version(connection, skill_id, version, bundle, body)

        return await self._store(bundle, work)

    async def get(self, skill_id: str) -> StoredSkill | None:
        """Return a skill, or None if it does not exist."""
        query = _SKILLS.where(_SKILL.id == skill_id)
        row = await self._database.read(lambda c: c.execute(query).one_or_none())
        return None if row is None else _skill_of(row)

    async def versions(self, skill_id: str) -> list[SkillVersion]:
        """Return the versions of a skill, newest first. Raises NotFound (`skill_not_found`)."""
        await self._skill(skill_id)
        query = select(skill_versions).where(_VERSION.skill_id == skill_id)
        query = query.order_by(_VERSION.version.desc())
        rows = await self._database.read(lambda c: c.execute(query).all())
        return [_version_of(row) for row in rows]

    async def read(self, skill_id: str, version: int | None = None) -> SkillBundle:
        """Return the content of a skill version. `version` None: the latest. Raises NotFound
        (`skill_not_found`)."""
        row = await self._version_row(skill_id, version)
        return SkillBundle(
            name=row.name,
            description=row.description,
            directory=row.directory,
            files=await asyncio.to_thread(self._read, row.body),
        )

    async def version(self, skill_id: str, version: int | None = None) -> SkillVersion:
        """Return the metadata of a skill version. `version` None: the latest. Raises NotFound
        (`skill_not_found`)."""
        return _version_of(await self._version_row(skill_id, version))

    async def delete(self, skill_id: str) -> None:
        """Delete a skill with all its versions. Raises NotFound (`skill_not_found`)."""

        def work(connection: Connection) -> list[str]:
            self._lock(connection, skill_id)
            deletion = delete(skill_versions).where(_VERSION.skill_id == skill_id)
            bodies = list(connection.execute(deletion.returning(_VERSION.body)).scalars())
            connection.execute(delete(skills).where(_SKILL.id == skill_id))
            return bodies

        await self._delete_bodies(await self._database.write(work))

    async def delete_version(self, skill_id: str, version: int) -> None:
        """Delete a version of a skill. Its number is not used again. Raises NotFound
        (`skill_not_found`), and Conflict if it is the only version."""

        def work(connection: Connection) -> list[str]:
            self._lock(connection, skill_id)
            kept = select(skill_versions).where(_VERSION.skill_id == skill_id)
            rows = connection.execute(kept.order_by(_VERSION.version.desc())).all()
            rest = [row for row in rows if row.version != version]
            if len(rest) == len(rows):
                raise _no_version(skill_id, version)
            if not rest:
                raise Conflict(
                    f"version {version} is the only one of '{shorten(skill_id)}'; delete the skill",
                    code="skill_needs_version",
                )
            newest = {"name": rest[0].name, "description": rest[0].description}
            connection.execute(update(skills).where(_SKILL.id == skill_id).values(newest))
            deletion = delete(skill_versions).where(
                _VERSION.skill_id == skill_id, _VERSION.version == version
            )
            return list(connection.execute(deletion.returning(_VERSION.body)).scalars())

        await self._delete_bodies(await self._database.write(work))

    async def list(self) -> list[StoredSkill]:
        """Return all skills, newest first."""
        query = _SKILLS.order_by(_SKILL.sequence.desc())
        rows = await self._database.read(lambda c: c.execute(query).all())
        return [_skill_of(row) for row in rows]

    async def _skill(self, skill_id: str) -> StoredSkill:
        skill = await self.get(skill_id)
        if skill is None:
            raise _no_skill(skill_id)
        return skill

    async def _version_row(self, skill_id: str, version: int | None) -> Row[Any]:
        if version is None:
            version = (await self._skill(skill_id)).latest_version
        query = select(skill_versions).where(
            _VERSION.skill_id == skill_id, _VERSION.version == version
        )
        row = await self._database.read(lambda c: c.execute(query).one_or_none())
        if row is None:
            raise _no_version(skill_id, version)
        return row

    def _lock(self, connection: Connection, skill_id: str) -> None:
        """Lock the row of a skill until the end of the transaction. Raises NotFound."""
        touch = update(skills).where(_SKILL.id == skill_id).values(updated_at=self._clock())
        if connection.execute(touch.returning(_SKILL.id)).first() is None:
            raise _no_skill(skill_id)

    async def _delete_bodies(self, bodies: Sequence[str]) -> None:
        for name in bodies:
            await asyncio.to_thread(self._delete_body, name)

    async def _store(self, bundle: SkillBundle, work: Callable[[Connection, _Body], _T]) -> _T:
        """Write the archive of `bundle`, then run `work`, which inserts the rows, in a transaction,
        and return the result of `work`. If `work` fails, delete the archive."""
        body = await asyncio.to_thread(self._write, bundle)
        try:
            return await self._database.write(lambda connection: work(connection, body))
        except ServiceError:
            await asyncio.to_thread(self._delete_body, body.name)
            raise

    def _insert_version(
        self, connection: Connection, skill_id: str, version: int, bundle: SkillBundle, body: _Body
    ) -> SkillVersion:
        total = connection.execute(_TOTAL_BYTES).scalar_one()
        if total + body.size_bytes > self._max_bytes:
            raise StorageFull
        stored = SkillVersion(
            skill_id=skill_id,
            version=version,
            created_at=self._clock(),
            name=bundle.name,
            description=bundle.description,
            directory=bundle.directory,
        )
        values = {name: getattr(stored, name) for name in stored.__struct_fields__}
        values |= {"body": body.name, "size_bytes": body.size_bytes}
        connection.execute(insert(skill_versions).values(values))
        return stored

    def _write(self, bundle: SkillBundle) -> _Body:
        """Write the files of `bundle` to Blobs as one zip archive."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path, data in sorted(bundle.files.items()):
                packed.writestr(zipfile.ZipInfo(path, ZIP_DATE), data, zipfile.ZIP_DEFLATED)
        body = _Body(f"{FOLDER}/{new_id('')}.zip", archive.tell())
        with translated_faults():
            self._blobs.write(body.name, archive.getvalue())
        return body

    def _delete_body(self, body: str) -> None:
        """Delete an archive. If the deletion fails, a sweep deletes the archive later."""
        with contextlib.suppress(OSError):
            self._blobs.delete(body)

    def _read(self, body: str) -> dict[str, bytes]:
        with translated_faults():
            archive = io.BytesIO(self._blobs.read(body))
        with zipfile.ZipFile(archive) as packed:
            return {path: packed.read(path) for path in packed.namelist()}


def _no_skill(skill_id: str) -> NotFound:
    return NotFound(f"Skill '{shorten(skill_id)}' not found", code="skill_not_found")


def _no_version(skill_id: str, version: int) -> NotFound:
    return NotFound(f"Skill '{shorten(skill_id)}' has no version {version}", code="skill_not_found")


def _skill_of(row: Row[Any]) -> StoredSkill:
    values = dict(row._mapping)
    del values["sequence"]
    values["latest_version"] = values.pop("newest")
    return StoredSkill(**values)


def _version_of(row: Row[Any]) -> SkillVersion:
    values = dict(row._mapping)
    del values["body"], values["size_bytes"]
    return SkillVersion(**values)
