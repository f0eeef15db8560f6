"""Image models: prompts to images."""
