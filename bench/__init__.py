"""Measurements. Speed lives here and in `results/`, never in a test. See peers.md."""
