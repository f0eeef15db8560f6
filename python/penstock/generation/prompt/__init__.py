"""Builds prompts: turns a request into token ids that fit the context."""
