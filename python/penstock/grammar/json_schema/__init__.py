"""Converts JSON schemas to grammars, finds keywords that cannot be enforced, and locates errors."""
