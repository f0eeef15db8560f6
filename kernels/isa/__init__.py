"""The instruction sets of CPU kernels, and how a model's are chosen."""
