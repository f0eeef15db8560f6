"""Decoders of request fields that several dialects have in common."""
