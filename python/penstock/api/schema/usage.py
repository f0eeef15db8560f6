"""Token counts and times of an answer."""

from __future__ import annotations

from msgspec import Struct


class PromptTokensDetails(Struct):
    """`cached_tokens` of the prompt came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """`reasoning_tokens` of the answer are reasoning."""

    reasoning_tokens: int


class CompletionUsage(Struct):
    """Tokens, seconds, and tokens per second, over all choices."""

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
