"""The sampling fields that every request for an answer has."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.wire import fields as f


class SamplingFields(Struct, kw_only=True):
    """How tokens are drawn. What is null or absent: the model's own default, else off."""

    temperature: f.Temperature | None = None
    top_p: f.TopP | None = None
    top_k: f.TopK | None = None
    min_p: f.MinP | None = None
    presence_penalty: f.Penalty | None = None
    frequency_penalty: f.Penalty | None = None
    repetition_penalty: f.RepetitionPenalty | None = None
    logit_bias: f.LogitBias | None = None
    dry_multiplier: f.DryMultiplier | None = None
    dry_base: f.DryBase | None = None
    dry_allowed_length: f.DryAllowedLength | None = None
    dry_sequence_breakers: f.DryBreakers | None = None
    seed: f.Seed = None
