"""Tokenizers: texts to token ids for decoders, embedding models and rerankers."""
