"""The instruction sets (ISAs) of CPU kernels, and the choice of a model's ISAs."""
