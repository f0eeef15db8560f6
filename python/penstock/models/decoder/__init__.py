"""The Llama-family decoder: its spec, tensor names, weights, RoPE and computation."""
