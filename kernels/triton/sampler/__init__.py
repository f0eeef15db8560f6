"""The sampler: adjustments of logits, sampling, log-probabilities."""
