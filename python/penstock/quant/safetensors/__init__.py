"""Reads safetensors folders with the quantization methods of their config.json: FP8, GPTQ, AWQ,
compressed-tensors, MLX, MXFP4."""
