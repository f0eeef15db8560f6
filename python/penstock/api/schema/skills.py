"""Skills in the shapes of OpenAI and Anthropic; the headers tell which client asks."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class SkillUpload(Struct):
    """A form with a zip archive, or the files of one folder; one of them is SKILL.md."""

    files: list[str]


class SkillObject(Struct):
    """A skill."""

    id: str
    object: Literal["skill"]
    created_at: int
    name: str
    description: str
    latest_version: int


class SkillList(Struct):
    """Skills, the newest first."""

    object: Literal["list"]
    data: list[SkillObject]
    has_more: bool
    first_id: str | UnsetType = UNSET
    last_id: str | UnsetType = UNSET


class SkillVersionObject(Struct):
    """A version of a skill."""

    id: str
    object: Literal["skill.version"]
    skill_id: str
    created_at: int
    version: int
    name: str
    description: str


class AnthropicSkill(Struct):
    """A skill, for Anthropic's clients; times are as RFC 3339 writes them."""

    id: str
    type: Literal["skill"]
    created_at: str
    updated_at: str
    display_title: str
    display_name: str
    lifecycle: Literal["active"]
    latest_version: str
    latest_version_id: str
    source: Literal["custom"]


class AnthropicSkillList(Struct):
    """A page of skills in Anthropic's shape, newest first. `next_page` is the `page` of the next
    request."""

    data: list[AnthropicSkill]
    has_more: bool
    next_page: str | None


class AnthropicSkillVersion(Struct):
    """A version of a skill, for Anthropic's clients."""

    id: str
    type: Literal["skill_version"]
    skill_id: str
    created_at: str
    version: str
    name: str
    description: str
    directory: str


class SkillVersionList(Struct):
    """Versions, the newest first; always in Anthropic's form."""

    object: Literal["list"]
    data: list[AnthropicSkillVersion]
    has_more: bool
    next_page: str | None


class SkillDeleted(Struct):
    """A deleted skill."""

    id: str
    object: Literal["skill.deleted"]
    deleted: bool


class AnthropicSkillDeleted(Struct):
    """The same for Anthropic's clients."""

    id: str
    type: Literal["skill_deleted"]


class SkillVersionDeleted(Struct):
    """A deleted version."""

    id: str
    object: Literal["skill.version.deleted"]
    deleted: bool
    version: str


class AnthropicSkillVersionDeleted(Struct):
    """The same for Anthropic's clients."""

    id: str
    type: Literal["skill_version_deleted"]
