"""Token counts and times of an answer."""

from __future__ import annotations

from msgspec import Struct


class PromptTokensDetails(Struct):
    """A breakdown of `prompt_tokens`. `cached_tokens`: tokens from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """A breakdown of `completion_tokens`. `reasoning_tokens`: tokens of reasoning."""

    reasoning_tokens: int


class CompletionUsage(Struct):
    """Token counts, times in seconds and rates in tokens per second, summed over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    avg_tok_per_sec: float
    avg_prompt_tok_per_sec: float
    avg_compl_tok_per_sec: float
    total_time_sec: float
    total_prompt_time_sec: float
    total_completion_time_sec: float
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
