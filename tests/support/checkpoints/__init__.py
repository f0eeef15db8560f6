"""Small models, adapters and tokenizers that tests write to disk."""
