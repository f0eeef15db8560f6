"""Schema types of Anthropic's Messages."""
