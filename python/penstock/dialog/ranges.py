"""Limits of request fields. The schema types of the HTTP API contain them; `generation` also checks
them, for embedded use."""

from __future__ import annotations

from typing import Final

MAX_INTEGER: Final = 2**63 - 1
MAX_TOKEN_ID: Final = 2**31 - 1

MAX_TEMPERATURE: Final = 2
MAX_PENALTY: Final = 2
"""Maximum absolute value of presence and frequency penalties."""
MAX_BIAS: Final = 100
MIN_DRY_BASE: Final = 1
MAX_BREAKERS: Final = 64
MAX_STOPS: Final = 64
MAX_STOP_TOKENS: Final = 64
MAX_CHOICES: Final = 128
MAX_TOP_LOGPROBS: Final = 20
MAX_INPUTS: Final = 2048
"""Maximum number of prompts of a completion request, or inputs of an embedding request."""
MAX_SPEECH_CHARS: Final = 32_768
"""Maximum number of characters of a text to speak, about half an hour of speech."""
MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0
MAX_PROMPT_CHARS: Final = 32_768
"""Maximum number of characters of a prompt for an image."""
MAX_IMAGES: Final = 10
MAX_IMAGE_SIDE: Final = 4096
MAX_IMAGE_PIXELS: Final = 2048 * 2048
DEFAULT_HEIGHT: Final = 720
DEFAULT_WIDTH: Final = 1280
