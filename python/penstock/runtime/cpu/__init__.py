"""The CPU runtime: recorded plans, the KV cache and the selection of instruction sets."""
