"""What a model brings for text: tokenizer data, special tokens, chat templates, stop ids."""
