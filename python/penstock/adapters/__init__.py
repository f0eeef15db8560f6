"""LoRA adapters: PEFT folders read into immutable revisions, and the aliases that name them.

Knows the shape of a decoder; no queues, no engine, no HTTP.
"""
