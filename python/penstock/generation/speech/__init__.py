"""Runs requests for speech."""
