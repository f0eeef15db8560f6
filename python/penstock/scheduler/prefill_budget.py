"""How many prompt tokens may join a step in which other requests wait for their next token.

The time of a step is taken as `fixed + per_token * tokens`, fitted to the measured steps with
exponential forgetting, so it follows the model, the machine, longer contexts and a core that
another process takes away. Pure arithmetic on durations that it is given: it reads no clock.
"""

from __future__ import annotations

CALM_STRETCH = 1.9
"""A step with prompt tokens may take this many times the same step without them, while one request
waits for its first token. This bounds the inter-token latency of those who decode while prompts
arrive (p99 / p50 <= 2) and leaves prompts 1 - 1 / stretch of the machine."""

CROWDED_STRETCH = 2.5
"""The same while half as many wait for their first token as for their next one, and as much more
than calm as there are more than one between: where prompts need more than their share of the
machine they get it before they pile up."""

CROWDED_STEP_S = 0.1
"""While more wait for their first token than for their next one, a step may take so long: tokens
still come as fast as they are read, and what a step costs whatever it computes is shared by many
prompt tokens."""

_FORGETTING = 1 / 16
_OUTLIER = 4.0
_MIN_VARIANCE = 16.0
_LEVERAGE_TOKENS = 32.0
_FIRST_GUESS_TOKENS = 64


class PrefillBudget:
    """`min_share`: so many prompt tokens may join any step."""

    def __init__(self, min_share: int) -> None:
        self._min_share = min_share
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

    def token_cost(self, rows: int) -> float:
        """What a further token adds to a step of `rows` tokens, in parts of the time that each of
        those takes; 1, as if nothing were shared, while it is not known or there are none."""
        if self._per_token_s <= 0.0 or rows == 0:
            return 1.0
        own_s = self._per_token_s * rows
        return own_s / (self.fixed_s + own_s)

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
        # A step of 512 tokens must not outweigh for long the many small ones that follow it.
        trust = weight * min(1.0, (_LEVERAGE_TOKENS / max(abs(d_tokens), 1.0)) ** 2)
        self._variance = (1.0 - weight) * (self._variance + trust * d_tokens * d_tokens)
        self._covariance = (1.0 - weight) * (self._covariance + trust * d_tokens * d_s)
        # Steps of one size say nothing about the slope: the one known stays.
        if self._variance >= _MIN_VARIANCE and self._covariance > 0.0:
            self._per_token_s = self._covariance / self._variance

    def prefill_tokens(self, decodes: int, prompts: int) -> int:
        """Prompt tokens that may be computed in a step in which `decodes` sequences get their next
        token, while `prompts` wait for their first."""
        if self._per_token_s <= 0.0:
            return max(_FIRST_GUESS_TOKENS, self._min_share)
        alone_s = self.fixed_s + self._per_token_s * decodes
        crowd = min(1.0, 2.0 * (prompts - 1) / decodes)
        step_s = (CALM_STRETCH + crowd * (CROWDED_STRETCH - CALM_STRETCH)) * alone_s
        if prompts > decodes:
            step_s = max(step_s, CROWDED_STEP_S)
        return max(int((step_s - alone_s) / self._per_token_s), self._min_share)
