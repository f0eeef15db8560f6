"""LoRA adapters: reads PEFT folders into immutable revisions, and manages the aliases that name
them.

This package knows the shape of a decoder, but no queues, no engine and no HTTP.
"""
