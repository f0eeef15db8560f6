"""Writes quantized models: the type of each tensor, the files, and a report of what was lost."""
