"""The CPU runtime: native plans, the KV cache in memory, the choice of instruction sets."""
