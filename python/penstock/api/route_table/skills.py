"""Entries of the route table: skills and their versions."""

from __future__ import annotations

from typing import Final

from penstock.api.route_table.operation import (
    ANTHROPIC_PAGES,
    FORM,
    STORE_ERRORS,
    TEXT_VALUE,
    Operation,
    Query,
)
from penstock.api.routes.skills import (
    AddSkillVersion,
    CreateSkill,
    DeleteSkill,
    DeleteSkillVersion,
    GetSkill,
    GetSkillVersion,
    ListSkills,
    ListSkillVersions,
)
from penstock.api.schema.skills import (
    AnthropicSkill,
    AnthropicSkillDeleted,
    AnthropicSkillList,
    AnthropicSkillVersion,
    AnthropicSkillVersionDeleted,
    SkillDeleted,
    SkillList,
    SkillObject,
    SkillUpload,
    SkillVersionDeleted,
    SkillVersionList,
    SkillVersionObject,
)

TAG: Final = "Skills"

OPERATIONS: Final = (
    Operation(
        "GET /v1/skills",
        ListSkills,
        id="listSkills",
        tag=TAG,
        summary="List skills, in Anthropic's format if a header of its clients is sent",
        response=(SkillList, AnthropicSkillList),
        errors=STORE_ERRORS,
        query=(*ANTHROPIC_PAGES, Query("source", "`custom` lists all skills.", TEXT_VALUE)),
    ),
    Operation(
        "POST /v1/skills",
        CreateSkill,
        id="createSkill",
        tag=TAG,
        summary="Upload a skill",
        request=SkillUpload,
        request_media=FORM,
        response=(SkillObject, AnthropicSkill),
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/skills/{skill_id}",
        GetSkill,
        id="getSkill",
        tag=TAG,
        summary="Get a skill",
        response=(SkillObject, AnthropicSkill),
        errors=STORE_ERRORS,
    ),
    Operation(
        "DELETE /v1/skills/{skill_id}",
        DeleteSkill,
        id="deleteSkill",
        tag=TAG,
        summary="Delete a skill with all its versions",
        response=(SkillDeleted, AnthropicSkillDeleted),
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/skills/{skill_id}/versions/{version}",
        GetSkillVersion,
        id="getSkillVersion",
        tag=TAG,
        summary="Get a version of a skill, by its number, its id or `latest`",
        response=(SkillVersionObject, AnthropicSkillVersion),
        errors=STORE_ERRORS,
    ),
    Operation(
        "DELETE /v1/skills/{skill_id}/versions/{version}",
        DeleteSkillVersion,
        id="deleteSkillVersion",
        tag=TAG,
        summary="Delete a version of a skill; 409 for the only version",
        response=(SkillVersionDeleted, AnthropicSkillVersionDeleted),
        errors=(*STORE_ERRORS, 409),
    ),
    Operation(
        "GET /v1/skills/{skill_id}/versions",
        ListSkillVersions,
        id="listSkillVersions",
        tag=TAG,
        summary="List the versions of a skill",
        response=SkillVersionList,
        errors=STORE_ERRORS,
        query=ANTHROPIC_PAGES,
    ),
    Operation(
        "POST /v1/skills/{skill_id}/versions",
        AddSkillVersion,
        id="addSkillVersion",
        tag=TAG,
        summary="Upload a version of a skill",
        request=SkillUpload,
        request_media=FORM,
        response=(SkillVersionObject, AnthropicSkillVersion),
        errors=STORE_ERRORS,
    ),
)
