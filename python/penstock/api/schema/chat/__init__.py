"""Schema types of chat completions."""
