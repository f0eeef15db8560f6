"""Loads the skills of a request and describes them to the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from penstock.agent.protocols import SkillStore
from penstock.base.errors import InvalidRequest, NotFound
from penstock.dialog import SkillReference
from penstock.sandbox.types import SkillFolder
from penstock.store.records import SkillBundle

MAX_TREE_ENTRIES: Final = 80
MAX_TREE_DEPTH: Final = 4


async def load_skills(
    store: SkillStore, references: Sequence[SkillReference]
) -> tuple[SkillBundle, ...]:
    """Return the skills that a request names. Raises NotFound (`skill_not_found`) for an unknown
    skill, and InvalidRequest if two skills have the same folder."""
    bundles: list[SkillBundle] = []
    for index, reference in enumerate(references):
        try:
            bundle = await store.read(reference.skill_id, reference.version)
        except NotFound as error:
            raise NotFound(error.message, field=f"skills[{index}]", code=error.code) from None
        if any(bundle.directory == other.directory for other in bundles):
            raise InvalidRequest(
                f"two skills have the folder {bundle.directory!r}; name one of them",
                field=f"skills[{index}]",
            )
        bundles.append(bundle)
    return tuple(bundles)


def skill_folders(bundles: Sequence[SkillBundle]) -> tuple[SkillFolder, ...]:
    """Return the skills as folders for the container."""
    return tuple(SkillFolder(bundle.directory, bundle.files) for bundle in bundles)


def skill_instructions(bundles: Sequence[SkillBundle]) -> str:
    """Return the text that tells the model which skills it has, or "" without skills."""
    if not bundles:
        return ""
    lines = [
        "You have skills: folders of instructions and programs, mounted read-only in the working"
        " directory of the shell. If a task fits a skill, your first command must be"
        " `cat skills/<folder>/SKILL.md`; then follow it.",
        "",
    ]
    for bundle in bundles:
        lines.append(f"- {bundle.name} (skills/{bundle.directory}): {bundle.description}")
    lines += ["", *_tree(bundles)]
    return "\n".join(lines)


def _tree(bundles: Sequence[SkillBundle]) -> list[str]:
    """Return the paths of all files, at most MAX_TREE_ENTRIES and MAX_TREE_DEPTH levels."""
    paths = [
        f"skills/{bundle.directory}/{path}" for bundle in bundles for path in sorted(bundle.files)
    ]
    shown = [path for path in paths if len(PurePosixPath(path).parts) - 2 <= MAX_TREE_DEPTH]
    shown = shown[:MAX_TREE_ENTRIES]
    left_out = len(paths) - len(shown)
    return [*shown, f"({left_out} more)"] if left_out else shown
