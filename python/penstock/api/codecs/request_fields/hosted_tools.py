"""Decodes the tools that the server runs, as clients of OpenAI's APIs request them.

Only validates the request. The generator checks whether the server can run the tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.schema import hosted as h
from penstock.api.schema.messages.request import MessagesTool
from penstock.dialog import HostedTool, PythonTool, SearchTool, ShellTool, SkillReference

MAX_SKILL_VERSION: Final = 2**31 - 1
# Starts of OpenAI's dated tool types, which are aliases of the undated types.
DATED_PREFIXES: Final = ("web_search_preview_20", "web_search_20")


def undated(kind: object) -> object:
    """Return a tool's type without its date: `web_search_2025_08_26` becomes `web_search`."""
    for prefix in DATED_PREFIXES:
        if isinstance(kind, str) and kind.startswith(prefix):
            return prefix.removesuffix("_20")
    return kind


def decode_hosted_tools(tools: Sequence[object], field_paths: FieldPaths) -> tuple[HostedTool, ...]:
    """Return the server-side tools in `tools`, in order. Raises InvalidRequest if a tool occurs
    twice."""
    found: list[HostedTool] = []
    for index, entry in enumerate(tools):
        tool = _hosted_tool(entry, f"tools[{index}]")
        if tool is None:
            continue
        if any(type(other) is type(tool) for other in found):
            refuse(f"tools[{index}].type", "names a tool of the server that is in the list already")
        found.append(tool)
        field_paths.note_hosted(f"tools[{index}]")
    return tuple(found)


def decode_search_options(options: h.WebSearchOptions | None) -> SearchTool | None:
    """Return the search tool that `web_search_options` configures; None if the field is absent."""
    if options is None:
        return None
    location: h.UserLocation | None = options.user_location
    if isinstance(location, h.NestedUserLocation) and location.approximate is not None:
        location = location.approximate
    return msgspec.structs.replace(
        _search(options, options.filters, location, "web_search_options"),
        search_description=options.search_description,
        extract_description=options.extract_description,
    )


def decode_location(location: h.UserLocation | None) -> dict[str, str] | None:
    """Return the non-empty fields of `user_location`; None if there are none."""
    if location is None:
        return None
    given = {
        "city": location.city,
        "country": location.country,
        "region": location.region,
        "timezone": location.timezone,
    }
    return {key: value for key, value in given.items() if value} or None


def decode_domains(
    filters: h.SearchFilters | MessagesTool | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (allowed domains, blocked domains)."""
    if filters is None:
        return (), ()
    return tuple(filters.allowed_domains or ()), tuple(filters.blocked_domains or ())


def decode_skill_version(version: int | str | None, path: str) -> int | None:
    """Return the version of a skill; None for the latest. Accepts an integer, its digits as a
    string, "latest" and None. Raises InvalidRequest for other values."""
    if version is None or version == "latest":
        return None
    if isinstance(version, str) and version.isascii() and version.isdigit() and len(version) < 11:
        version = int(version)
    if not isinstance(version, int) or not 1 <= version <= MAX_SKILL_VERSION:
        refuse(path, 'must be a version number or "latest"')
    return version


def _hosted_tool(entry: object, path: str) -> HostedTool | None:
    match entry:
        case h.WebSearchTool():
            return _search(entry, entry.filters, entry.user_location, path)
        case h.WebSearchPreviewTool():
            location = decode_location(entry.user_location)
            return SearchTool(entry.search_context_size, location)
        case h.CodeInterpreterTool():
            if isinstance(entry.container, str):
                why = 'cannot name a container; use {"type": "auto"}'
                refuse(f"{path}.container", why, code="unsupported_value")
            return PythonTool()
        case h.ShellTool():
            skills = enumerate(entry.environment.skills or ())
            return ShellTool(
                tuple(_skill(s, f"{path}.environment.skills[{index}]") for index, s in skills)
            )
    return None


def _search(
    options: h.WebSearchOptions | h.WebSearchTool,
    filters: h.SearchFilters | None,
    location: h.UserLocation | None,
    path: str,
) -> SearchTool:
    if options.external_web_access is False:
        refuse(
            f"{path}.external_web_access",
            "cannot be false: a search of the server (--enable-search) needs the web; use live"
            ' search in the client (Codex: web_search = "live"), or none (web_search = "disabled")',
            code="unsupported_value",
        )
    size = options.search_context_size
    # An unlimited token budget means the largest context size.
    size = "high" if options.return_token_budget == "unlimited" else size
    return SearchTool(size, decode_location(location), *decode_domains(filters))


def _skill(skill: h.SkillReferenceEntry, path: str) -> SkillReference:
    return SkillReference(skill.skill_id, decode_skill_version(skill.version, f"{path}.version"))
