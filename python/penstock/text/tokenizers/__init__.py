"""Tokenizers for decoders, embedding models and rerankers."""
