"""Responses that outlive their request: background runs, stored rows, stream logs."""
