"""`response_format`, `grammar`, `structured_outputs` and `adapter`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

JsonSchema = Annotated[
    dict[str, Any] | bool, Meta(description="A JSON Schema, nested at most 64 levels deep.")
]


class NamedJsonSchema(Struct):
    """The schema of an answer."""

    schema: JsonSchema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(Struct, tag="text", tag_field="type"):
    """No constraint."""


class JsonSchemaFormat(Struct, tag="json_schema", tag_field="type"):
    """The answer is JSON that matches a schema."""

    json_schema: NamedJsonSchema


ResponseFormat = TextFormat | JsonSchemaFormat


class RegexGrammar(Struct, tag="regex", tag_field="type"):
    """The answer matches a regular expression."""

    value: str


class LarkGrammar(Struct, tag="lark", tag_field="type"):
    """The answer matches a grammar in Lark's form."""

    value: str


class GbnfGrammar(Struct, tag="gbnf", tag_field="type"):
    """The answer matches a grammar in llama.cpp's form."""

    value: str


class SchemaGrammar(Struct, tag="json_schema", tag_field="type"):
    """The answer is JSON that matches a schema."""

    value: JsonSchema


class GrammarPart(Struct):
    """One of `json_schema` and `lark_grammar`."""

    name: str | None = None
    json_schema: dict[str, Any] | None = None
    lark_grammar: str | None = None


class GrammarParts(Struct):
    """llguidance's own form."""

    grammars: Annotated[list[GrammarPart], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None


class LlguidanceGrammar(Struct, tag="llguidance", tag_field="type"):
    """The answer matches grammars that may refer to each other."""

    value: GrammarParts


SchemaOrItsText = Annotated[
    JsonSchema | str, Meta(description="A JSON Schema, or the JSON text of one.")
]
Alternatives = Annotated[
    list[Annotated[str, Meta(min_length=1)]],
    Meta(min_length=1, max_length=1024, description="The answer is one of these."),
]
GbnfText = Annotated[str, Meta(description="A grammar in llama.cpp's form.")]
GrammarText = Annotated[str, Meta(description="A grammar in Lark's form or in llama.cpp's.")]
Grammar = RegexGrammar | LarkGrammar | GbnfGrammar | SchemaGrammar | LlguidanceGrammar | GbnfText


class StructuredOutputs(Struct):
    """What the answer must match, as clients of vLLM write it: one of these."""

    json: SchemaOrItsText | None = None
    regex: str | None = None
    choice: Alternatives | None = None
    grammar: GrammarText | None = None
    json_object: f.Absent = None
    structural_tag: f.Absent = None


class AdapterGenerationSelection(Struct):
    """An exact generation of a LoRA adapter."""

    generation: str


Adapter = Annotated[
    Annotated[str, Meta(min_length=1)] | AdapterGenerationSelection,
    Meta(description="Alias of a loaded LoRA adapter, or a generation of one."),
]
Permission = Literal["auto", "ask", "deny"]
