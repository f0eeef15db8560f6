"""The CPU runtime: recorded plans, the KV cache and the choice of instruction sets."""
