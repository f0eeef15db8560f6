"""Makes quantized weights: the types that can be written, and their encoders."""
