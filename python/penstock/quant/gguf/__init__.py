"""GGUF files and GGML's block formats."""
