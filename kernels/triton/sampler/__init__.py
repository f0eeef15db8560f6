"""The sampler: changes to logits, sampling, log-probabilities."""
