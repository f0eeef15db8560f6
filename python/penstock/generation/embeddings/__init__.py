"""Embeddings and reranking: requests that are answered with vectors or scores."""
