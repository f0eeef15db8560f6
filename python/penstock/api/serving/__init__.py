"""The processes of a server: the parent, its API workers, the messages between them, and
uvicorn."""
