"""Benchmarks. Speed is measured here and recorded in `results/`, never asserted in a test. See
peers.md."""
