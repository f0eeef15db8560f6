"""Attention over the paged KV cache: prefill, decode, and the write to the cache."""
