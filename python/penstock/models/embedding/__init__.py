"""Embedding models and rerankers: a decoder or encoder, pooling, and the layers after pooling."""
