"""Embedding models and rerankers: a decoder or an encoder, pooling, and the layers after it."""
