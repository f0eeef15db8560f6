"""Reads GGUF files and converts GGML's block formats."""
