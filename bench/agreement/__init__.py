"""`python -m bench agreement`: the same GGUF files in Penstock, llama.cpp and transformers."""

from bench.agreement.command import main

__all__ = ["main"]
