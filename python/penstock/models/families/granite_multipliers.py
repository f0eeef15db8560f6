"""Granite's multipliers, as what every decoder has.

A residual stream h that a block's result is added to m times is m times a stream g that it is added
to once. RMSNorm does not tell h from g, but for its eps: that of g is eps / m^2.
"""

from __future__ import annotations

import math
from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import DecoderSpec


def with_multipliers(
    plain: DecoderSpec, where: str, *, embedding: float, residual: float, logits_divisor: float
) -> DecoderSpec:
    """`plain`, whose embeddings and blocks' results are multiplied by two numbers, and whose logits
    are divided by one. Raises ModelError that opens with `where` for one that is not positive."""
    assert not plain.sandwich_norms and not plain.qk_norm, "these norms are not of the stream"
    given = {
        "embedding multiplier": embedding,
        "residual multiplier": residual,
        "divisor of logits": logits_divisor,
    }
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise ModelError(f"{where}: {name} {value} is not positive")
    return replace(
        plain,
        embedding_scale=embedding / residual,
        norm_eps=plain.norm_eps / residual**2,
        logit_scale=1 / logits_divisor,
    )
