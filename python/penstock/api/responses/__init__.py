"""Stored and background responses: their runs, their rows in the store, their stream logs."""
