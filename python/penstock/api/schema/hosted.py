"""Tools that the server runs, as clients of OpenAI's APIs request them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

Domains = Annotated[list[f.NonEmpty], Meta(max_length=100)]
ContentKinds = Annotated[
    list[
        Annotated[
            Literal["text"], Meta(extra={"code": f.UNSUPPORTED, "hint": "searches find text only"})
        ]
    ],
    Meta(max_length=2, description="Searches find text only."),
]
ContextSize = Literal["low", "medium", "high"]
NetworkAccess = Annotated[bool, Meta(extra_json_schema={"const": True})]
NoImages = Annotated[
    None,
    f.refused("is not supported: searches find text only"),
]
NotInPreview = Annotated[
    None,
    f.refused("is not supported by web_search_preview; use web_search"),
]
NoContainerOption = Annotated[
    None,
    f.refused("is not supported: containers cannot be chosen or set up"),
]
SkillVersion = Annotated[
    int | str, Meta(description="A number, its digits, or `latest`. Absent: the latest version.")
]


class UserLocation(Struct, omit_defaults=True, kw_only=True):
    """The user's approximate location, for web search."""

    type: Literal["approximate"] | None = None
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class NestedUserLocation(UserLocation, kw_only=True):
    """The user's approximate location, flat or, as in OpenAI's chat API, nested under
    `approximate`."""

    approximate: UserLocation | None = None


class SearchFilters(Struct, omit_defaults=True):
    """Domains to which web search is limited, and domains that are excluded. A domain includes its
    subdomains."""

    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None


class _SearchFields(Struct, omit_defaults=True, kw_only=True):
    search_context_size: ContextSize | None = None
    filters: SearchFilters | None = None
    external_web_access: NetworkAccess | None = None
    return_token_budget: Literal["default", "unlimited"] | None = None
    search_content_types: ContentKinds | None = None
    image_settings: NoImages = None


class WebSearchOptions(_SearchFields, kw_only=True):
    """Options of web search on the chat and messages routes; sending the field turns search on.
    `search_description` and `extract_description` replace the tool descriptions that the model
    sees."""

    user_location: NestedUserLocation | None = None
    search_description: str | None = None
    extract_description: str | None = None


class WebSearchTool(_SearchFields, tag="web_search", tag_field="type", kw_only=True):
    """Web search in `tools`. Dated types such as `web_search_2025_08_26` are accepted too."""

    user_location: UserLocation | None = None


class WebSearchPreviewTool(
    Struct, tag="web_search_preview", tag_field="type", omit_defaults=True, kw_only=True
):
    """The older type of web search in `tools`."""

    search_context_size: ContextSize | None = None
    user_location: UserLocation | None = None
    external_web_access: f.Ignored = None
    search_content_types: ContentKinds | None = None
    filters: NotInPreview = None
    return_token_budget: NotInPreview = None
    image_settings: NoImages = None


class _ContainerOptions(Struct, omit_defaults=True, kw_only=True):
    container_id: NoContainerOption = None
    file_ids: NoContainerOption = None
    memory_limit: NoContainerOption = None
    network_policy: NoContainerOption = None


class AutoContainer(_ContainerOptions, kw_only=True):
    """A container that the server chooses. The request cannot select an existing container."""

    type: Literal["auto"]


class CodeInterpreterTool(Struct, tag="code_interpreter", tag_field="type"):
    """A tool that runs Python on the server."""

    container: Annotated[AutoContainer | str, Meta(description="The id of a container is refused.")]


class SkillReferenceEntry(Struct, omit_defaults=True):
    """An uploaded skill to make available to the shell."""

    type: Annotated[
        Literal["skill_reference"],
        Meta(extra={"code": f.UNSUPPORTED, "hint": "only uploaded skills can be used"}),
    ]
    skill_id: f.NonEmpty
    version: SkillVersion | None = None


class ShellEnvironment(_ContainerOptions, kw_only=True):
    """The container in which the server runs the shell, and the skills available there."""

    type: Annotated[Literal["container_auto"], Meta(extra={"code": f.UNSUPPORTED})]
    skills: Annotated[list[SkillReferenceEntry], Meta(max_length=64)] | None = None


class ShellTool(Struct, tag="shell", tag_field="type"):
    """A tool that runs shell commands on the server."""

    environment: ShellEnvironment


class RequestedFile(Struct):
    """A file that the server's tools must produce."""

    name: Annotated[f.FileName, Meta(min_length=1)]
    format: Annotated[str | None, Meta(description="Absent: from the suffix of the name.")] = None
    description: Annotated[str | None, Meta(description="For the model.")] = None


RequestedFiles = Annotated[list[RequestedFile], Meta(max_length=64)]
