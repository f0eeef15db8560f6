"""What the benchmarks share: servers to measure, load clients, workloads, comparison."""
