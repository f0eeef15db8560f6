"""The bias of each distance is that of its bucket in transformers."""

from __future__ import annotations

import numpy as np
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from penstock.models.encoder.relative_position_bias import MAX_DISTANCE, relative_position_bias


def test_every_distance_has_the_bias_of_its_bucket() -> None:
    buckets = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    ours = relative_position_bias(buckets)
    distances = torch.arange(-1000, 1001)
    theirs = MPNetEncoder.relative_position_bucket(distances).numpy()
    columns = np.clip(distances.numpy(), -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
    np.testing.assert_array_equal(ours[:, columns], buckets[theirs].T)
