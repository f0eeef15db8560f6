"""The media of requests in an engine: their place in prompts, and their encoding between steps."""
