"""Stored and background responses: running them, their database rows, their recorded streams."""
