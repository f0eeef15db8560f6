"""The rotary embedding of Hunyuan: "dynamic" scaling with a fixed factor alpha, which stretches the
base and does not depend on the length of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_rope import head_dim

C = TypeVar("C", bound=HfConfig)


def with_stretched_base(config: C, where: str) -> C:
    """Return the config with a plain rotary embedding of the stretched base, or unchanged if its
    scaling is not "dynamic". Raises ModelError that starts with `where` for a faulty alpha."""
    given: Mapping[str, Any] = config.rope_scaling or config.rope_parameters or {}
    if (given.get("rope_type") or given.get("type")) != "dynamic":
        return config
    alpha, theta = given.get("alpha"), given.get("rope_theta") or config.rope_theta or 10_000.0
    dim = head_dim(config)
    if not isinstance(alpha, int | float) or alpha <= 0 or dim <= 2:
        raise ModelError(
            f"{where}: dynamic rope scaling is supported only with a positive alpha and heads of"
            f" more than 2 components, not alpha {alpha} and {dim}"
        )
    stretched = {"rope_type": "default", "rope_theta": theta * alpha ** (dim / (dim - 2))}
    return msgspec.structs.replace(config, rope_scaling=None, rope_parameters=stretched)
