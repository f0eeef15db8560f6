"""Answers requests for embeddings and for reranking."""
