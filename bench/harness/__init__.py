"""Shared parts of the benchmarks: servers to measure, load clients, workloads, comparison."""
