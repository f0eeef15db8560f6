"""Answers and forms of the skill routes, in OpenAI's and Anthropic's shapes. The request headers
determine the shape of the answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class SkillUpload(Struct):
    """A multipart form with a zip archive or the files of one folder. SKILL.md must be among the
    files."""

    files: list[str]


class SkillObject(Struct):
    """An uploaded skill, in OpenAI's shape. `created_at`: Unix seconds."""

    id: str
    object: Literal["skill"]
    created_at: int
    name: str
    description: str
    latest_version: int


class SkillList(Struct):
    """A page of skills in OpenAI's shape, newest first."""

    object: Literal["list"]
    data: list[SkillObject]
    has_more: bool
    first_id: str | UnsetType = UNSET
    last_id: str | UnsetType = UNSET


class SkillVersionObject(Struct):
    """A version of a skill, in OpenAI's shape."""

    id: str
    object: Literal["skill.version"]
    skill_id: str
    created_at: int
    version: int
    name: str
    description: str


class AnthropicSkill(Struct):
    """An uploaded skill, in Anthropic's shape. Times are in RFC 3339 format."""

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
    """A page of skills in Anthropic's shape, newest first. `next_page`: value of the query
    parameter `page` for the next request; null on the last page."""

    data: list[AnthropicSkill]
    has_more: bool
    next_page: str | None


class AnthropicSkillVersion(Struct):
    """A version of a skill, in Anthropic's shape."""

    id: str
    type: Literal["skill_version"]
    skill_id: str
    created_at: str
    version: str
    name: str
    description: str
    directory: str


class SkillVersionList(Struct):
    """A page of the versions of a skill, newest first; in Anthropic's shape for all clients."""

    object: Literal["list"]
    data: list[AnthropicSkillVersion]
    has_more: bool
    next_page: str | None


class SkillDeleted(Struct):
    """Confirms that a skill was deleted, in OpenAI's shape."""

    id: str
    object: Literal["skill.deleted"]
    deleted: bool


class AnthropicSkillDeleted(Struct):
    """Confirms that a skill was deleted, in Anthropic's shape."""

    id: str
    type: Literal["skill_deleted"]


class SkillVersionDeleted(Struct):
    """Confirms that a version of a skill was deleted, in OpenAI's shape."""

    id: str
    object: Literal["skill.version.deleted"]
    deleted: bool
    version: str


class AnthropicSkillVersionDeleted(Struct):
    """Confirms that a version of a skill was deleted, in Anthropic's shape."""

    id: str
    type: Literal["skill_version_deleted"]
