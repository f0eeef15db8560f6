"""Tools that the server runs, as clients of OpenAI's chat API ask for them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

Domains = Annotated[list[f.NonEmpty], Meta(max_length=100)]
ContentKinds = Annotated[
    list[Literal["text"]], Meta(max_length=2, description="Searches find text only.")
]
ContextSize = Literal["low", "medium", "high"]
NetworkAccess = Annotated[bool, Meta(extra_json_schema={"const": True})]


class UserLocation(Struct):
    """Roughly where the user is."""

    type: Literal["approximate"] | None = None
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class NestedUserLocation(Struct):
    """The same in the form of OpenAI's chat API, which nests it under `approximate`."""

    type: Literal["approximate"] | None = None
    approximate: UserLocation | None = None
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class SearchFilters(Struct):
    """Domains include their subdomains."""

    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None


class WebSearchOptions(Struct):
    """Search on chat and messages: that it is there asks for it. The descriptions take the place of
    those that the model is shown."""

    search_context_size: ContextSize | None = None
    user_location: NestedUserLocation | None = None
    filters: SearchFilters | None = None
    external_web_access: NetworkAccess | None = None
    return_token_budget: Literal["default", "unlimited"] | None = None
    search_content_types: ContentKinds | None = None
    image_settings: f.Absent = None
    search_description: str | None = None
    extract_description: str | None = None


class WebSearchTool(Struct, tag="web_search", tag_field="type"):
    """Search of the web. Dated names of this type are taken too."""

    search_context_size: ContextSize | None = None
    user_location: UserLocation | None = None
    filters: SearchFilters | None = None
    external_web_access: NetworkAccess | None = None
    return_token_budget: Literal["default", "unlimited"] | None = None
    search_content_types: ContentKinds | None = None
    image_settings: f.Absent = None


class WebSearchPreviewTool(Struct, tag="web_search_preview", tag_field="type"):
    """The older form of `web_search`."""

    search_context_size: ContextSize | None = None
    user_location: UserLocation | None = None
    external_web_access: f.Ignored = None
    search_content_types: ContentKinds | None = None
    filters: f.Absent = None
    return_token_budget: f.Absent = None
    image_settings: f.Absent = None


class AutoContainer(Struct):
    """The only container that can be asked for."""

    type: Literal["auto"]
    container_id: f.Absent = None
    file_ids: f.Absent = None
    memory_limit: f.Absent = None
    network_policy: f.Absent = None


class CodeInterpreterTool(Struct, tag="code_interpreter", tag_field="type"):
    """Python that the server runs."""

    container: AutoContainer


class SkillReferenceEntry(Struct):
    """An uploaded skill; absent or `latest`: its newest version."""

    type: Literal["skill_reference"]
    skill_id: f.NonEmpty
    version: Annotated[int | str | None, Meta(description="A number, its digits, or `latest`.")] = (
        None
    )


class ShellEnvironment(Struct):
    """Where the shell runs: in a container of the server's."""

    type: Literal["container_auto"]
    skills: Annotated[list[SkillReferenceEntry], Meta(max_length=64)] | None = None
    container_id: f.Absent = None
    file_ids: f.Absent = None
    memory_limit: f.Absent = None
    network_policy: f.Absent = None


class ShellTool(Struct, tag="shell", tag_field="type"):
    """A shell that the server runs."""

    environment: ShellEnvironment


class RequestedFile(Struct):
    """A file that tools of the server must make."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    format: Annotated[str | None, Meta(description="Absent: by the ending of the name.")] = None
    description: Annotated[str | None, Meta(description="For the model.")] = None


RequestedFiles = Annotated[list[RequestedFile], Meta(max_length=64)]
