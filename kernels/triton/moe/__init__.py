"""Mixture of experts: routing, sorting by expert, and products."""
