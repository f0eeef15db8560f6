"""Ranges of request fields. The schema types describe them; `generation` checks them again for
embedded use."""

from __future__ import annotations

from typing import Final

MAX_INTEGER: Final = 2**63 - 1
MAX_TOKEN_ID: Final = 2**31 - 1

MAX_TEMPERATURE: Final = 2
MAX_PENALTY: Final = 2
"""Of presence and frequency penalties, to both sides of 0."""
MAX_BIAS: Final = 100
MIN_DRY_BASE: Final = 1
MAX_BREAKERS: Final = 64
MAX_STOPS: Final = 64
MAX_STOP_TOKENS: Final = 64
MAX_CHOICES: Final = 128
MAX_TOP_LOGPROBS: Final = 20
MAX_INPUTS: Final = 2048
"""Prompts of a completion, or inputs of an embedding."""
