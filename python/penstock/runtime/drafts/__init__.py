"""Drafters: models that propose draft tokens for speculative decoding."""
