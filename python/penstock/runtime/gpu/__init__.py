"""The GPU runtime: persistent batch, CUDA graphs, CPU KV cache and memory plan of a device."""
