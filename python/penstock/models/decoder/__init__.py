"""The decoder (Llama and its relatives): spec, tensor names, weights, RoPE and forward pass."""
