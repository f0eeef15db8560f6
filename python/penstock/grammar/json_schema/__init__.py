"""JSON schemas as grammars: which parts can be enforced, and where an error is."""
