"""Tools that the server runs, as clients of OpenAI's chat API ask for them.

Decodes and validates; whether a runtime for them is enabled is not known here. What the
specification rejects is refused with the field named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.fields import Fields, shown
from penstock.dialog import HostedTool, PythonTool, SearchTool, ShellTool, SkillReference

MAX_DOMAINS: Final = 100
MAX_SKILLS: Final = 64
MAX_SKILL_VERSION: Final = 2**31 - 1
CONTEXT_SIZES: Final = ("low", "medium", "high")
LOCATION_FIELDS: Final = ("city", "country", "region", "timezone")
# OpenAI's dated names of a tool mean the tool.
DATED: Final = ("web_search_preview_20", "web_search_20")

ContextSize = Literal["low", "medium", "high"]


def hosted_kind(kind: str) -> str | None:
    """The undated name of a hosted tool, None for what is none."""
    for prefix in DATED:
        if kind.startswith(prefix):
            return prefix.removesuffix("_20")
    return kind if kind in _DECODERS else None


def decode_hosted(entry: Fields) -> HostedTool:
    """An entry of `tools` whose `type` is a hosted one (see `hosted_kind`)."""
    kind = hosted_kind(entry.required_string("type"))
    assert kind is not None
    return _DECODERS[kind](entry)


def decode_hosted_tools(
    fields: Fields, kinds: Sequence[str], names: FieldPaths
) -> tuple[HostedTool, ...]:
    """The hosted ones of `tools`, in order; each of them at most once. `kinds`: those that the
    dialect has; others are left to `tools.decode_functions`."""
    if fields.get("tools") is None:
        return ()
    tools: list[HostedTool] = []
    for entry in fields.objects("tools"):
        if hosted_kind(entry.required_string("type")) not in kinds:
            continue
        tool = decode_hosted(entry)
        if any(type(other) is type(tool) for other in tools):
            entry.refuse("type", "names a tool of the server that is in the list already")
        tools.append(tool)
        names.note_hosted(entry.path)
    return tuple(tools)


def decode_search_options(fields: Fields) -> SearchTool | None:
    """`web_search_options` of chat and messages; its presence alone asks for search."""
    options = fields.object("web_search_options")
    if options is None:
        return None
    options.string("search_description")
    options.string("extract_description")
    _refuse_images(options)
    _refuse_offline(options)
    allowed, blocked = decode_domains(options.object("filters"))
    return SearchTool(_context_size(options), _nested_location(options), allowed, blocked)


def decode_domains(filters: Fields | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`allowed_domains` and `blocked_domains` of an object, at most 100 each."""
    if filters is None:
        return (), ()
    allowed = filters.strings("allowed_domains", MAX_DOMAINS)
    blocked = filters.strings("blocked_domains", MAX_DOMAINS)
    return allowed or (), blocked or ()


def _web_search(entry: Fields) -> SearchTool:
    _refuse_images(entry)
    _refuse_offline(entry)
    allowed, blocked = decode_domains(entry.object("filters"))
    return SearchTool(_context_size(entry), decode_flat_location(entry), allowed, blocked)


def _web_search_preview(entry: Fields) -> SearchTool:
    """`external_web_access` is ignored here, whatever it is."""
    _refuse_images(entry)
    for key in ("filters", "return_token_budget"):
        _refuse_given(entry, key, "is not supported by web_search_preview; use web_search")
    return SearchTool(_context_size(entry), decode_flat_location(entry))


def _code_interpreter(entry: Fields) -> PythonTool:
    """The only supported container is `{type: auto}`."""
    if type(entry.get("container")) is str:
        entry.refuse(
            "container",
            'cannot name a container; use {"type": "auto"}',
            code="unsupported_value",
        )
    container = entry.required_object("container")
    container.required_string("type")
    container.choice("type", ("auto",))
    _refuse_container_options(container)
    return PythonTool()


def _shell(entry: Fields) -> ShellTool:
    environment = entry.required_object("environment")
    kind = environment.required_string("type")
    if kind in ("local", "container_reference"):
        environment.refuse(
            "type", f'cannot be {shown(kind)}; use "container_auto"', code="unsupported_value"
        )
    environment.choice("type", ("container_auto",))
    _refuse_container_options(environment)
    skills = tuple(_skill(skill) for skill in environment.objects("skills"))
    if len(skills) > MAX_SKILLS:
        environment.refuse("skills", f"may hold at most {MAX_SKILLS} skills, not {len(skills)}")
    return ShellTool(skills)


def _skill(skill: Fields) -> SkillReference:
    kind = skill.required_string("type")
    if kind != "skill_reference":
        skill.refuse(
            "type",
            f'must be "skill_reference", not {shown(kind)}: only uploaded skills can be used',
            code="unsupported_value",
        )
    skill_id = skill.required_string("skill_id")
    if not skill_id:
        skill.refuse("skill_id", "must not be empty")
    return SkillReference(skill_id, decode_skill_version(skill))


def decode_skill_version(skill: Fields) -> int | None:
    """A number, its decimal digits as a string, or "latest"."""
    value: Any = skill.get("version")
    if value is None or value == "latest":
        return None
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 11:
        value = int(value)
    if type(value) is not int or not 1 <= value <= MAX_SKILL_VERSION:
        skill.refuse("version", 'must be a version number or "latest"')
    return value


def _refuse_images(options: Fields) -> None:
    _refuse_given(options, "image_settings", "is not supported: searches find text only")
    for index, kind in enumerate(options.strings("search_content_types", 2) or ()):
        if kind != "text":
            options.refuse(
                f"search_content_types[{index}]",
                f'must be "text", not {shown(kind)}: searches find text only',
                code="unsupported_value",
            )


def _refuse_offline(options: Fields) -> None:
    if options.boolean("external_web_access") is False:
        options.refuse(
            "external_web_access",
            "cannot be false: a search of the server (--enable-search) needs the web; turn"
            ' `web_search` off in the client (Codex: web_search = "disabled")',
            code="unsupported_value",
        )


def _refuse_container_options(container: Fields) -> None:
    for key in ("container_id", "file_ids", "memory_limit", "network_policy"):
        _refuse_given(container, key, "is not supported: containers cannot be chosen or set up")


def _refuse_given(fields: Fields, key: str, why: str) -> None:
    if fields.get(key) is not None:
        fields.refuse(key, why, code="unsupported_value")


def _context_size(options: Fields) -> ContextSize | None:
    """An unlimited token budget is what the largest context size has."""
    size = options.choice("search_context_size", CONTEXT_SIZES)
    if options.choice("return_token_budget", ("default", "unlimited")) == "unlimited":
        return "high"
    return cast("ContextSize | None", size)


def _nested_location(options: Fields) -> dict[str, str] | None:
    """As in OpenAI's chat API: `{type: approximate, approximate: {...}}`."""
    location = options.object("user_location")
    if location is None:
        return None
    location.choice("type", ("approximate",))
    return _location(location.object("approximate") or location)


def decode_flat_location(entry: Fields) -> dict[str, str] | None:
    """`user_location` of a tool: `{type: approximate, city, ...}`."""
    location = entry.object("user_location")
    if location is not None:
        location.choice("type", ("approximate",))
    return _location(location)


def _location(location: Fields | None) -> dict[str, str] | None:
    if location is None:
        return None
    given = {key: location.string(key) for key in LOCATION_FIELDS}
    return {key: value for key, value in given.items() if value} or None


_DECODERS: Final[Mapping[str, Callable[[Fields], HostedTool]]] = {
    "web_search": _web_search,
    "web_search_preview": _web_search_preview,
    "code_interpreter": _code_interpreter,
    "shell": _shell,
}
