"""Errors, ids, logging and resource limits for all packages. Imports no other package of
Penstock."""
