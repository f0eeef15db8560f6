"""JSON schemas as grammars: which keywords can be enforced, and where an error is."""
