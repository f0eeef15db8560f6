"""The fields of every request that generates: how tokens are sampled, and what ends the answer."""

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
    """How tokens are sampled. A null or absent field means the model's own default, else off.
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
    """The model, the adapter, what the answer must match, what ends it, and who shares the cache of
    its prompt. At most one field may constrain the answer. The fields from `guided_json` on are
    other engines' forms of `structured_outputs`."""

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
