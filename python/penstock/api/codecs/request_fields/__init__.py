"""Decoders of the request fields that several dialects share."""
