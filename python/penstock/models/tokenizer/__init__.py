"""Reads the text parts of a model's files: tokenizer, special tokens, chat templates, stop ids."""
