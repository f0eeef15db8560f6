"""Stored skills."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import NotFound
from penstock.config import StoreSettings
from penstock.store import SkillBundle, Store
from penstock.store.errors import StorageFull
from tests.support.stores import MovableClock, opened


def bundle(description: str = "Adds numbers.", **files: bytes) -> SkillBundle:
    return SkillBundle(
        name="adder",
        description=description,
        directory="adder",
        files={"SKILL.md": b"---", **files},
    )


async def test_skill_comes_back_as_it_was_uploaded(store: Store, clock: MovableClock) -> None:
    sent = bundle(**{"scripts/add.py": b"print(1)\n", "empty": b""})
    skill = await store.skills.create(sent)
    assert skill.id.startswith("skill_") and skill.latest_version == 1
    assert await store.skills.get(skill.id) == skill
    assert await store.skills.list() == [skill]
    assert await store.skills.read(skill.id) == sent
    (version,) = await store.skills.versions(skill.id)
    assert (version.id, version.version) == (f"{skill.id}_v1", 1)


async def test_new_version_leaves_the_old_one_as_it_was(store: Store, clock: MovableClock) -> None:
    skill = await store.skills.create(bundle())
    clock.now += 10
    second = await store.skills.add_version(skill.id, bundle("Adds better.", more=b"x"))
    assert second.version == 2
    assert [v.version for v in await store.skills.versions(skill.id)] == [2, 1]
    now = await store.skills.get(skill.id)
    assert now is not None
    assert (now.description, now.latest_version, now.updated_at) == ("Adds better.", 2, clock.now)
    assert (await store.skills.read(skill.id, 1)).files == {"SKILL.md": b"---"}
    assert (await store.skills.read(skill.id)).description == "Adds better."


async def test_concurrent_versions_get_different_numbers(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    skill = await store.skills.create(bundle())
    async with opened(settings, clock) as other:
        uploads = [s.skills.add_version(skill.id, bundle()) for s in (store, other) * 4]
        versions = await asyncio.gather(*uploads)
    assert sorted(v.version for v in versions) == list(range(2, 10))


async def test_unknown_skill_is_not_found(store: Store) -> None:
    skill = await store.skills.create(bundle())
    for call in (
        store.skills.versions("skill_?"),
        store.skills.read("skill_?"),
        store.skills.read(skill.id, 2),
        store.skills.add_version("skill_?", bundle()),
    ):
        with pytest.raises(NotFound):
            await call
    assert await store.skills.get("skill_?") is None


async def test_skill_beyond_the_quota_is_rejected_and_none_is_lost(
    settings: StoreSettings, clock: MovableClock
) -> None:
    assert settings.skills_dir is not None
    small = msgspec.structs.replace(settings, max_skills_bytes=5_000)
    async with opened(small, clock) as store:
        kept = await store.skills.create(bundle(large=os.urandom(4_000)))
        more = bundle(large=os.urandom(1_000))
        for refused in (store.skills.create(more), store.skills.add_version(kept.id, more)):
            with pytest.raises(StorageFull):
                await refused
        assert await store.skills.list() == [kept]
        assert len(await store.skills.versions(kept.id)) == 1
        assert len([*Path(settings.skills_dir).rglob("*.zip")]) == 1
        await store.skills.create(bundle())


async def test_sweep_deletes_only_archives_without_a_skill(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    skill = await store.skills.create(bundle())
    assert settings.skills_dir is not None
    (archive,) = Path(settings.skills_dir).rglob("*.zip")
    orphan = archive.with_name("orphan.zip")
    orphan.write_bytes(b"?")
    for path in (archive, orphan):
        os.utime(path, (clock.now - 7200,) * 2)
    await store.sweep.run()
    assert not orphan.exists()
    assert await store.skills.read(skill.id) == bundle()
