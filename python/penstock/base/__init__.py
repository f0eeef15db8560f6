"""Errors, ids, logging and what the machine gives: what every room may use. Imports nothing of
Penstock."""
