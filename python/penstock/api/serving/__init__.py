"""Processes: the parent with its API workers, their messages, uvicorn."""
