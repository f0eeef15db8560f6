"""How many prompt tokens may join a step in which other requests wait for their next token.

The time of a step is taken as `fixed + per_token * tokens`, fitted to the measured steps with
exponential forgetting, so it follows the model, the machine, longer contexts and a core that
another process takes away. Pure arithmetic on durations that it is given: it reads no clock.
"""

from __future__ import annotations

MIXED_STEP_STRETCH = 2.5
"""A mixed step may take this many times the same step without prompt tokens.

It bounds the inter-token latency of those who decode while prompts arrive (p99 / p50), and gives
the prompts 1 - 1 / stretch of the machine. Simulated over 3.0 ms + 0.1 ms a token (see
`bench/lab/scheduler_pace.py`): 2.5 keeps p99 / p50 under 2.5 and 60 % of the prompt speed.
"""

_FORGETTING = 1 / 16
_OUTLIER = 4.0
_MIN_VARIANCE = 36.0
_FIRST_GUESS_TOKENS = 64


class StepPace:
    """`block_tokens`: shares are whole blocks, at least one."""

    def __init__(self, block_tokens: int, stretch: float = MIXED_STEP_STRETCH) -> None:
        assert stretch > 1.0
        self._block_tokens = block_tokens
        self._stretch = stretch
        self._steps = 0
        self._mean_tokens = 0.0
        self._mean_s = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._per_token_s = 0.0

    @property
    def per_token_s(self) -> float:
        """Seconds that a further token adds to a step; 0 while unknown."""
        return self._per_token_s

    @property
    def fixed_s(self) -> float:
        """Seconds of a step that do not depend on its tokens."""
        return max(0.0, self._mean_s - self._per_token_s * self._mean_tokens)

    def observe(self, tokens: int, duration_s: float) -> None:
        """A step of `tokens` tokens took `duration_s`. What took far longer than expected (the
        machine did something else) counts as `_OUTLIER` times the expectation only."""
        if self._steps == 0:
            self._mean_tokens, self._mean_s, self._steps = float(tokens), duration_s, 1
            return
        if self._per_token_s > 0.0:
            expected_s = self.fixed_s + self._per_token_s * tokens
            duration_s = min(duration_s, _OUTLIER * expected_s)
        self._steps += 1
        weight = max(_FORGETTING, 1.0 / self._steps)
        d_tokens, d_s = tokens - self._mean_tokens, duration_s - self._mean_s
        self._mean_tokens += weight * d_tokens
        self._mean_s += weight * d_s
        self._variance = (1.0 - weight) * (self._variance + weight * d_tokens * d_tokens)
        self._covariance = (1.0 - weight) * (self._covariance + weight * d_tokens * d_s)
        # Steps of one size say nothing about the slope: the one known stays.
        if self._variance >= _MIN_VARIANCE and self._covariance > 0.0:
            self._per_token_s = self._covariance / self._variance

    def prompt_share(self, decodes: int) -> int:
        """Prompt tokens that a step with `decodes` decoding sequences may compute."""
        if self._per_token_s <= 0.0:
            return max(_FIRST_GUESS_TOKENS, self._block_tokens)
        alone_s = self.fixed_s + self._per_token_s * decodes
        share = int((self._stretch - 1.0) * alone_s / self._per_token_s)
        return max(share - share % self._block_tokens, self._block_tokens)
