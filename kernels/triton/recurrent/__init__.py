"""Kernels of recurrent layers: convolutions, matrix states, and norms with a gate."""
