"""Limits the prefill tokens of a step that also decodes.

The duration of a step is modelled as `fixed + per_token * tokens`. The model is fitted to the
measured steps with exponential forgetting, so that it follows the model, the machine, longer
contexts and cores that another process takes away. The durations are given: this module reads no
clock.
"""

from __future__ import annotations

CALM_STRETCH = 1.9
"""While one request waits for its first token, a step with prefill may last this many times as long
as the step would without prefill. This bounds the inter-token latency of decodes while prompts
arrive (p99 / p50 <= 2) and leaves prefill 1 - 1 / stretch of the machine."""

CROWDED_STRETCH = 2.5
"""The factor that replaces `CALM_STRETCH` if the requests that wait for their first token are at
least half as many as the decodes. Between one waiting request and that number, the factor grows
linearly. So prompts that need more than their share of the machine get it before they pile up."""

CROWDED_STEP_S = 0.1
"""Seconds that a step may last while more requests wait for their first token than decode. Tokens
still arrive as fast as they are read, and many prefill tokens share the fixed cost of a step."""

_FORGETTING = 1 / 16
_OUTLIER = 4.0
_MIN_VARIANCE = 16.0
_LEVERAGE_TOKENS = 32.0
_INITIAL_PREFILL_TOKENS = 64


class PrefillBudget:
    """Computes how many prefill tokens may join a step of decodes.

    - `min_share`: prefill tokens that may join any step.
    - `taken_s`: seconds of other work before the next step, which leave it less prefill.
    """

    def __init__(self, min_share: int) -> None:
        self.taken_s = 0.0
        self._min_share = min_share
        self._steps = 0
        self._mean_tokens = 0.0
        self._mean_s = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._per_token_s = 0.0

    @property
    def per_token_s(self) -> float:
        """Seconds that each further token adds to a step; 0 if not known yet."""
        return self._per_token_s

    @property
    def fixed_s(self) -> float:
        """Seconds of a step that do not depend on its number of tokens."""
        return max(0.0, self._mean_s - self._per_token_s * self._mean_tokens)

    def token_cost(self, rows: int) -> float:
        """Return the time that a further token adds to a step of `rows` tokens, divided by the time
        per token of that step. Return 1 if that is not known yet or `rows` is 0."""
        if self._per_token_s <= 0.0 or rows == 0:
            return 1.0
        own_s = self._per_token_s * rows
        return own_s / (self.fixed_s + own_s)

    def step_token_s(self, rows: int) -> float:
        """Return the seconds of a step of `rows` tokens, at least 1, divided by `rows`. Call this
        only if `token_cost` is below 1."""
        return self.fixed_s / rows + self._per_token_s

    def observe(self, tokens: int, duration_s: float) -> None:
        """Record that a step of `tokens` tokens took `duration_s`. If it took far longer than
        expected, because the machine did something else, `_OUTLIER` times the expected duration is
        recorded."""
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
        # Steps of equal size do not determine the slope: keep the last one.
        if self._variance >= _MIN_VARIANCE and self._covariance > 0.0:
            self._per_token_s = self._covariance / self._variance

    def prefill_tokens(self, decodes: int, prompts: int) -> int:
        """Return how many prefill tokens may join a step of `decodes` decodes. `prompts`: requests
        that wait for their first token."""
        if self._per_token_s <= 0.0:
            return max(_INITIAL_PREFILL_TOKENS, self._min_share)
        left_s = self.extra_s(decodes, prompts) - self.taken_s
        return max(int(left_s / self._per_token_s), self._min_share)

    def extra_s(self, decodes: int, prompts: int) -> float:
        """Return how many seconds longer a step of `decodes` decodes may last than without prefill.
        `prompts`: requests that wait for their first token."""
        alone_s = self.fixed_s + self._per_token_s * decodes
        crowd = min(1.0, 2.0 * (prompts - 1) / decodes)
        step_s = (CALM_STRETCH + crowd * (CROWDED_STRETCH - CALM_STRETCH)) * alone_s
        if prompts > decodes:
            step_s = max(step_s, CROWDED_STEP_S)
        return step_s - alone_s
