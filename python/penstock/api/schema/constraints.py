"""Types of the fields that constrain an answer (`response_format`, `grammar`,
`structured_outputs`), and of `adapter`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

JsonSchema = Annotated[
    dict[str, Any] | bool, Meta(description="A JSON Schema, nested at most 64 levels deep.")
]


class NamedJsonSchema(Struct, omit_defaults=True):
    """A JSON Schema that the answer must match, with an optional name and description."""

    schema: JsonSchema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class FlatJsonSchemaFormat(NamedJsonSchema, tag="json_schema", tag_field="type"):
    """The answer is JSON that matches `schema`, which is not nested under `json_schema` (Responses
    API)."""


class TextFormat(Struct, tag="text", tag_field="type"):
    """The answer is text without a constraint."""


class JsonSchemaFormat(Struct, tag="json_schema", tag_field="type"):
    """The answer is JSON that matches a schema, nested under `json_schema` (chat API)."""

    json_schema: NamedJsonSchema


class JsonObjectFormat(Struct, tag="json_object", tag_field="type"):
    """The answer is any JSON object. Only a server that was started with `--openai-compat` accepts
    this."""


ResponseFormat = TextFormat | JsonSchemaFormat | JsonObjectFormat


class RegexGrammar(Struct, tag="regex", tag_field="type"):
    """The answer matches a regular expression."""

    value: str


class LarkGrammar(Struct, tag="lark", tag_field="type"):
    """The answer matches a Lark grammar."""

    value: str


class GbnfGrammar(Struct, tag="gbnf", tag_field="type"):
    """The answer matches a GBNF grammar (llama.cpp)."""

    value: str


class SchemaGrammar(Struct, tag="json_schema", tag_field="type"):
    """The answer is JSON that matches a JSON Schema."""

    value: JsonSchema


class GrammarPart(Struct, omit_defaults=True):
    """One grammar of `LlguidanceGrammar`: either `json_schema` or `lark_grammar`."""

    name: str | None = None
    json_schema: dict[str, Any] | None = None
    lark_grammar: str | None = None


class GrammarParts(Struct, omit_defaults=True):
    """Grammars in llguidance's JSON format."""

    grammars: Annotated[list[GrammarPart], Meta(min_length=1)]
    max_tokens: f.MaxTokens | None = None


class LlguidanceGrammar(Struct, tag="llguidance", tag_field="type"):
    """The answer matches the first of several grammars, which may refer to each other by name."""

    value: GrammarParts


SchemaOrItsText = Annotated[
    JsonSchema | str, Meta(description="A JSON Schema, or the JSON text of one.")
]
Alternatives = Annotated[
    list[f.NonEmpty],
    Meta(min_length=1, max_length=1024, description="The answer is one of these."),
]
GbnfText = Annotated[str, Meta(description="A grammar in llama.cpp's form.")]
GrammarText = Annotated[str, Meta(description="A grammar in Lark's form or in llama.cpp's.")]
Grammar = RegexGrammar | LarkGrammar | GbnfGrammar | SchemaGrammar | LlguidanceGrammar | GbnfText


class StructuredOutputs(Struct):
    """A constraint in the form of vLLM's clients. Exactly one field is set."""

    json: SchemaOrItsText | None = None
    regex: str | None = None
    choice: Alternatives | None = None
    grammar: GrammarText | None = None
    json_object: Annotated[
        bool | None, Meta(description="Needs a server with `--openai-compat`.")
    ] = None
    structural_tag: Annotated[
        None,
        f.refused('is not supported; send "json" with a schema'),
    ] = None


class AdapterGenerationSelection(Struct):
    """Selects an exact generation of a LoRA adapter instead of an alias."""

    generation: Annotated[
        str,
        Meta(
            pattern="^[0-9a-f]{64}$",
            max_length=64,
            extra={"wanted": "a string of 64 hexadecimal digits"},
        ),
    ]


Adapter = Annotated[
    f.NonEmpty | AdapterGenerationSelection,
    Meta(description="Alias of a loaded LoRA adapter, or a generation of one."),
]
Permission = Literal["auto", "ask", "deny"]
