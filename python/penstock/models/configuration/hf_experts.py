"""Reads the keys of config.json that describe a mixture of experts."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_config import HfConfig


class HfExpertsConfig(HfConfig):
    """The keys that every mixture-of-experts model reads. `num_local_experts`: Mixtral's name for
    `num_experts`."""

    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int | None = None


def expert_counts(config: HfExpertsConfig, where: str) -> tuple[int, int]:
    """Return the number of experts per layer and the number of experts per token. Raises ModelError
    naming a key that is missing."""
    count = config.num_experts or config.num_local_experts
    if count is None or config.num_experts_per_tok is None:
        missing = "num_experts" if count is None else "num_experts_per_tok"
        raise ModelError(f"{where}: {missing} is missing")
    return count, config.num_experts_per_tok
