"""Errors, ids, clock and logging: what every room may use. Imports nothing of Penstock."""
