"""LoRA adapters: PEFT folders read into immutable generations, and the aliases that name them.

Knows the shape of a decoder; no queues, no engine, no HTTP.
"""
