"""The terminal chat of `penstock run`."""
