"""Runs requests for images."""
