"""The configuration of a mixture of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.kernels.weights import ExpertActivation
from penstock.models.decoder.spec_limits import MAX_EXPERTS, MAX_WIDTH, check_sizes


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts: a router sends each token to some of `count` experts.

    - `routing`: the rule by which a token chooses experts, and their shares.
    - `intermediate_size`: the feed-forward width of one expert.
    - `biased`: the router and all linear layers of the experts have biases.
    - `activation`: the function between the two layers of an expert and of the shared feed-forward.
    - `gated`: both have a gate; False: down(activation(up(x))).
    - `correction_bias`: the router has a bias per expert that counts only for the choice.
    - `expert_scale`: each expert has a factor that scales its shares.
    - `shares_scale`: the shares of a token scale the "output" of its experts or their "input".
    - `shared_size`: the width of a feed-forward that all tokens pass through beside their experts
      (shared experts); its result is added. 0: there is none.
    - `shared_gated`: the result of the shared feed-forward is multiplied by the sigmoid of a linear
      layer with one output.
    - `beside_dense`: the layer has its dense feed-forward too. Both read the residual stream, with
      norms of their own, and both results are normalized and added.
    """

    count: int
    routing: Routing
    intermediate_size: int
    biased: bool = False
    activation: ExpertActivation = "silu"
    gated: bool = True
    correction_bias: bool = False
    expert_scale: bool = False
    shares_scale: Literal["output", "input"] = "output"
    shared_size: int = 0
    shared_gated: bool = False
    beside_dense: bool = False

    @property
    def per_token(self) -> int:
        """The number of experts that each token chooses."""
        return self.routing.top_k

    def inner_columns(self, width: int) -> int:
        """Return the maximum number of scratch elements that one token of `width` elements needs:
        the inputs and outputs of its experts, each padded to cache lines of 64 bytes, and a few
        numbers per chosen expert. A shared feed-forward needs gate, up and their product at another
        time; both results, its gate and the sum are held beside them."""
        inside = 2 * width + 3 * self.intermediate_size
        routed = self.per_token * (inside + 40) + self.count
        if not self.shared_size:
            return routed
        return max(routed, 3 * self.shared_size) + 3 * width + 16


def check_choice(where: str, per_token: int, groups: int = 1, groups_per_token: int = 1) -> None:
    """Check the numbers from which a `Routing` is made. Raises ModelError that starts with `where`
    and names the first number out of range."""
    limits = {
        "experts of a token": (per_token, MAX_EXPERTS),
        "groups of experts": (groups, MAX_EXPERTS),
        "groups of a token": (groups_per_token, groups),
    }
    check_sizes(where, limits)


def check_experts(experts: ExpertsSpec, where: str) -> None:
    """Check the sizes of a mixture of experts. Raises ModelError that starts with `where` and names
    the size."""
    limits = {
        "number of experts": (experts.count, MAX_EXPERTS),
        "experts of a token": (experts.per_token, experts.count),
        "feed-forward width of an expert": (experts.intermediate_size, MAX_WIDTH),
        "groups of experts": (experts.routing.groups, experts.count),
    }
    if experts.shared_size:
        limits["feed-forward width of the shared experts"] = experts.shared_size, MAX_WIDTH
    check_sizes(where, limits)
    groups, within = experts.routing.groups, experts.routing.groups_per_token
    if experts.count % groups:
        raise ModelError(f"{where}: {experts.count} experts cannot be divided into {groups} groups")
    reachable = within * (experts.count // groups)
    if experts.per_token > reachable:
        raise ModelError(
            f"{where}: experts of a token {experts.per_token} are more than the {reachable} in"
            f" {within} of {groups} groups"
        )
    if not 0 < experts.routing.scale < math.inf:
        raise ModelError(
            f"{where}: scale of the experts' shares must be positive and finite, not"
            f" {experts.routing.scale}"
        )
    if experts.shared_gated and not experts.shared_size:
        raise ModelError(f"{where}: a gate of shared experts without shared experts")
