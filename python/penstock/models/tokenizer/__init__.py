"""The text parts of a model's files: tokenizer data, special tokens, chat templates, stop ids."""
