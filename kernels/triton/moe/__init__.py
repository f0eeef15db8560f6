"""Mixture of experts: routing, the order of tokens, products."""
