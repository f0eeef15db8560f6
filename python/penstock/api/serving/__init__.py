"""The processes of a server: the parent, its API workers, their messages, and uvicorn."""
