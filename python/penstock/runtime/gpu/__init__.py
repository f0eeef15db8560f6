"""The GPU runtime: CUDA graphs, device rows, the CPU KV cache, device memory."""
