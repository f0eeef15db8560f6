"""Fields of every request that generates text: sampling parameters, constraints and end
conditions."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import (
    Adapter,
    Alternatives,
    Grammar,
    GrammarText,
    ResponseFormat,
    SchemaOrItsText,
    StructuredOutputs,
)


class SamplingFields(Struct, kw_only=True):
    """Sampling parameters. Null or absent means the model's default or, if there is none, off.
    `repeat_penalty` is another name of `repetition_penalty`."""

    temperature: f.Temperature | None = None
    top_p: f.TopP | None = None
    top_k: f.TopK | UnsetType | None = UNSET
    min_p: f.MinP | None = None
    presence_penalty: f.Penalty | None = None
    frequency_penalty: f.Penalty | None = None
    repetition_penalty: f.RepetitionPenalty | None = None
    repeat_penalty: f.RepetitionPenalty | None = None
    logit_bias: f.LogitBias | None = None
    dry_multiplier: f.DryMultiplier | None = None
    dry_base: f.DryBase | None = None
    dry_allowed_length: f.DryAllowedLength | None = None
    dry_sequence_breakers: f.DryBreakers | None = None
    seed: f.Seed = None


class AnswerFields(SamplingFields, kw_only=True):
    """The model and adapter, sampling parameters, end conditions and constraints of an answer. At
    most one field may constrain the answer. `cache_salt`: only requests with equal salts share
    cached prompts. `guided_json` to `ebnf`: names that other engines use for the fields of
    `structured_outputs`."""

    model: f.Model | None = None
    adapter: Adapter | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: f.MinTokens | None = None
    stop_token_ids: f.StopTokens | None = None
    cache_salt: f.CacheSalt | None = None
    response_format: ResponseFormat | None = None
    grammar: Grammar | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrItsText | None = None
    guided_regex: str | None = None
    guided_choice: Alternatives | None = None
    guided_grammar: GrammarText | None = None
    json_schema: SchemaOrItsText | None = None
    regex: str | None = None
    ebnf: GrammarText | None = None
