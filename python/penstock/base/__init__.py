"""Errors, ids, logging and resource limits, for every package. Imports nothing of Penstock."""
