"""The instruction sets (ISAs) of CPU kernels, and the choice of the ISAs for a model."""
