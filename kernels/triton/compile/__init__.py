"""Compiles Triton kernels ahead of time, packages their cubins and launches them."""
