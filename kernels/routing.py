"""`Routing`: how the router of a mixture of experts chooses experts and weighs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Scoring: TypeAlias = Literal["softmax", "sigmoid", "sparsemixer"]
SCORINGS: Final[tuple[Scoring, ...]] = ("softmax", "sigmoid", "sparsemixer")
"""All kinds of scores. Native kernels get the index in this tuple."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The rule by which each token chooses `top_k` of E experts, and the shares that they get.

    An expert's score is the softmax or the sigmoid of its logit. A token chooses the experts with
    the largest scores or, if the router has a bias, with the largest sums of score and bias; among
    equals, the lower number comes first. Without a bias, logits are compared, so that scores that
    round to the same number stay distinct.

    - `renormalize`: shares are the scores of the chosen experts, divided by their sum plus
      `epsilon`; False: the scores themselves. A softmax ignores `epsilon`.
    - `scale`: factor of all shares (routed_scaling_factor).
    - `groups`, `groups_per_token`: experts are divided into `groups` equal groups of neighbours,
      and a token chooses experts only from its `groups_per_token` best groups. 1 and 1: no limit.
    - `best_of_group`: a group's score is the sum of its `best_of_group` largest choice scores: 1
      (DeepSeek V2) or 2 (DeepSeek V3). In a sum of two, a softmax score is the softmax over all
      experts.
    - "sparsemixer" (PhiMoE, arXiv 2409.12136), only with `top_k` 2: an expert's share is the
      softmax over those experts e, not chosen before it, whose logit is near its own, m:
      (m - logit[e]) / max(|logit[e]|, m) <= 2 `jitter`. It has no groups and no bias.

    Raises ValueError for settings that contradict each other.
    """

    top_k: int
    scoring: Scoring = "softmax"
    renormalize: bool = False
    epsilon: float = 1e-20
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1
    best_of_group: int = 2
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ValueError(f"top_k: must be at least 1, got {self.top_k}")
        if not 1 <= self.groups_per_token <= self.groups:
            raise ValueError(
                f"groups_per_token: must be 1 to {self.groups}, the number of groups, "
                f"got {self.groups_per_token}"
            )
        if self.best_of_group not in (1, 2):
            raise ValueError(f"best_of_group: must be 1 or 2, got {self.best_of_group}")
        if self.scoring == "sparsemixer" and (self.top_k, self.groups) != (2, 1):
            raise ValueError("scoring: sparsemixer needs top_k 2 and has no groups")

    @property
    def limited(self) -> bool:
        """Whether some groups of experts are excluded for a token."""
        return self.groups_per_token < self.groups
